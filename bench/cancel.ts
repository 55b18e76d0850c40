import { call, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median, timed } from './support/figure.ts';
import { submission } from './support/items.ts';

const ITEMS = 50_000;
const ROUNDS = 3;

/** A cancel of 50,000 pending items, their usage events included, beside the submit that made them. */
export async function benchCancel(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const server = await bed.server({ database, concurrency: 0 });
  const body = submission(ITEMS);
  const submits: number[] = [];
  const cancels: number[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    let id = '';
    submits.push(await timed(async () => ({ id } = await submit(server, body))));
    cancels.push(await timed(() => call(server, 'POST', `/v1/batches/${id}/cancel`)));
    const [events] = await database.sql<{ n: number }>(
      'select count(*)::int as n from usage_events where batch_id = $1',
      [id],
    );
    if (events?.n !== ITEMS) throw new Error(`${ITEMS} usage events should be there: ${events?.n}`);
  }
  return [
    {
      name: 'cancel 50,000 pending items',
      value: median(cancels) / 1000,
      unit: 's',
      comparedWith: `their submit ${format(median(submits) / 1000)} s`,
      target: { atMost: 2 },
    },
  ];
}
