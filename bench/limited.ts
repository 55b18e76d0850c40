import { drainOnce } from './drain.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { KEYS } from './support/items.ts';

const ITEMS = 10_000;
const PAIRS = 3;

/** A drain under three rules that never refuse, beside one without rules: concurrency 64, instant upstream. */
export async function benchLimited(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream();
  const server = await bed.server({ database, upstream, concurrency: 64 });
  await drainOnce(server, database, 2000, KEYS.limited);
  const pairs: { plain: number; limited: number }[] = [];
  for (let i = 0; i < PAIRS; i++) {
    const plain = await drainOnce(server, database, ITEMS, KEYS.plain);
    pairs.push({ plain, limited: await drainOnce(server, database, ITEMS, KEYS.limited) });
  }
  const perSecond = (ms: readonly number[]) => `${format(ITEMS / (median(ms) / 1000))} items/s`;
  return [
    {
      name: 'drain under three rate limits',
      value: 100 * median(pairs.map(({ plain, limited }) => plain / limited)),
      unit: '% of none',
      comparedWith: `without limits ${perSecond(pairs.map((pair) => pair.plain))}, with them ${perSecond(pairs.map((pair) => pair.limited))}`,
    },
  ];
}
