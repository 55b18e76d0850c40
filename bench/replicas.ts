import { allCompleted, finished, submit } from './support/batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { submission } from './support/items.ts';

const ITEMS = 6000;
const CONCURRENCY = 64;
const ROUNDS = 2;

/** Two replicas on one Postgres and one payload directory, beside one: upstream of 50 ms, 64 slots each. */
export async function benchReplicas(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream({ delayMs: 50 });
  const first = await bed.server({ database, upstream, concurrency: CONCURRENCY });
  await drain(first, database, 1000);
  const one = await rounds(first, database);
  await bed.server({ database, upstream, concurrency: CONCURRENCY, payloadDir: first.payloadDir });
  await drain(first, database, 1000);
  const two = await rounds(first, database);
  const perSecond = (ms: number) => `${format(ITEMS / (ms / 1000))} items/s`;
  return [
    {
      name: 'two replicas, upstream of 50 ms, 64 slots each',
      value: one / two,
      unit: 'times',
      comparedWith: `one replica ${perSecond(one)}, two ${perSecond(two)}; 64 slots can do ${format((64 / 50) * 1000)}`,
      target: { atLeast: 1.9 },
    },
  ];
}

async function rounds(server: BenchServer, database: BenchDatabase): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < ROUNDS; i++) times.push(await drain(server, database, ITEMS));
  return median(times);
}

async function drain(server: BenchServer, database: BenchDatabase, count: number): Promise<number> {
  const batch = await submit(server, submission(count));
  const ms = (await finished(database, batch)) - batch.at;
  await allCompleted(database, batch, count);
  return ms;
}
