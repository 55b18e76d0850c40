import { call, finalItemsReach, finished, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { submission } from './support/items.ts';

const ROUNDS = 5;

/** Ten items behind 50,000 of the same owner, beside the same ten alone: concurrency 8, upstream of 50 ms. */
export async function benchFairness(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream({ delayMs: 50 });
  const server = await bed.server({ database, upstream, concurrency: 8 });
  const small = async () => {
    const times: number[] = [];
    for (let i = 0; i < ROUNDS; i++) {
      const batch = await submit(server, submission(10));
      times.push((await finished(database, batch)) - batch.at);
    }
    return median(times);
  };
  await small(); // warms up
  const alone = await small();
  const big = await submit(server, submission(50_000));
  await finalItemsReach(database, big, 50);
  const behind = await small();
  await call(server, 'POST', `/v1/batches/${big.id}/cancel`);
  return [
    {
      name: '10 items behind 50,000 of the same owner',
      value: behind / alone,
      unit: 'times',
      comparedWith: `alone ${format(alone)} ms, behind ${format(behind)} ms`,
      target: { atMost: 3 },
    },
  ];
}
