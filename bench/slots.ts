import { bareLoop } from './support/bare-loop.ts';
import { allCompleted, finished, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format } from './support/figure.ts';
import { submission } from './support/items.ts';

const ITEMS = 96;
const CONCURRENCY = 8;
const UPSTREAM_MS = 1000;

/**
 * Measures how busy 8 slots are with an upstream that takes a second. A bare loop with as many calls at once is never
 * idle. Its time is compared, as a share, with the time from the 202 to the last final item.
 */
export async function benchSlots(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream({ delayMs: UPSTREAM_MS });
  const server = await bed.server({ database, upstream, concurrency: CONCURRENCY });
  const batch = await submit(server, submission(ITEMS));
  const ms = (await finished(database, batch)) - batch.at;
  await allCompleted(database, batch, ITEMS);
  const bare = await bareLoop(upstream.url, CONCURRENCY, ITEMS, 0);
  return [
    {
      name: 'slots busy, upstream of 1 s, concurrency 8',
      value: (100 * bare) / ms,
      unit: '%',
      comparedWith: `${ITEMS} calls by a bare loop ${format(bare / 1000)} s, this ${format(ms / 1000)} s`,
      target: { atLeast: 99 },
    },
  ];
}
