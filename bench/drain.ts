import { bareLoop } from './support/bare-loop.ts';
import { allCompleted, finished, submit } from './support/batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { KEYS, submission } from './support/items.ts';

const ITEMS = 20_000;
const PAIRS = 3;
const WARM_UP = 2000;
/** With usage events and limits in (design section 9). */
const TARGETS: ReadonlyMap<number, number> = new Map([
  [8, 20],
  [64, 35],
]);

/** Submits a batch and gives the ms from its 202 to its last final item. */
export async function drainOnce(
  server: BenchServer,
  database: BenchDatabase,
  count: number,
  key = KEYS.plain,
): Promise<number> {
  const batch = await submit(server, submission(count), key);
  const ms = (await finished(database, batch)) - batch.at;
  await allCompleted(database, batch, count);
  return ms;
}

/** Drains 20,000 small items through an instant upstream, beside a bare loop over as many connections. */
export async function benchDrain(bed: Bed): Promise<Figure[]> {
  const upstream = await bed.upstream();
  const figures: Figure[] = [];
  for (const concurrency of [8, 64, 256]) {
    const database = await bed.database();
    const server = await bed.server({ database, upstream, concurrency });
    await drainOnce(server, database, WARM_UP);
    const pairs: { bare: number; ours: number }[] = [];
    const before = await readMetrics(server);
    for (let i = 0; i < PAIRS; i++) {
      const bare = await bareLoop(upstream.url, concurrency, ITEMS, WARM_UP);
      pairs.push({ bare, ours: await drainOnce(server, database, ITEMS) });
    }
    const after = await readMetrics(server);
    await server.stop();
    figures.push(
      ratio(concurrency, pairs),
      ...costs(concurrency, (after.cpuSeconds - before.cpuSeconds) / (PAIRS * ITEMS), after.loopDelaySeconds),
    );
  }
  return figures;
}

function ratio(concurrency: number, pairs: readonly { bare: number; ours: number }[]): Figure {
  const perSecond = (ms: readonly number[]) => format(ITEMS / (median(ms) / 1000));
  const target = TARGETS.get(concurrency);
  return {
    name: `drain, concurrency ${concurrency}`,
    value: 100 * median(pairs.map(({ bare, ours }) => bare / ours)),
    unit: '% of bare',
    comparedWith: `bare undici loop ${perSecond(pairs.map((p) => p.bare))} items/s, this ${perSecond(pairs.map((p) => p.ours))}`,
    ...(target === undefined ? {} : { target: { atLeast: target } }),
  };
}

function costs(concurrency: number, cpuSeconds: number, loopDelaySeconds: number): Figure[] {
  const name = (what: string) => `  ${what}, concurrency ${concurrency}`;
  return [
    {
      name: name('CPU of the server'),
      value: cpuSeconds * 1e6,
      unit: 'us/item',
      comparedWith: 'process_cpu_seconds_total over all items',
    },
    {
      name: name('event loop delay p99'),
      value: loopDelaySeconds * 1000,
      unit: 'ms',
      comparedWith: 'nodejs_eventloop_lag_p99_seconds, about 10 ms of it are its resolution',
      target: { atMost: 20 },
    },
  ];
}

async function readMetrics(server: BenchServer): Promise<{ cpuSeconds: number; loopDelaySeconds: number }> {
  const response = await fetch(`${server.controlUrl}/metrics`, { headers: { authorization: 'Bearer test-admin' } });
  const text = await response.text();
  const read = (name: string) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);
  return { cpuSeconds: read('process_cpu_seconds_total'), loopDelaySeconds: read('nodejs_eventloop_lag_p99_seconds') };
}
