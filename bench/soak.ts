import { setTimeout as delay } from 'node:timers/promises';
import { allCompleted, call, finished, submit } from './support/batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { submission } from './support/items.ts';
import { readMeters } from './support/meters.ts';
import { residentBytes } from './support/process.ts';

const MIB = 2 ** 20;
const BATCH_ITEMS = 500;
/** 16 slots with an upstream of 50 ms can do 320 items/s; a batch every 2 s needs 250. */
const EVERY_MS = 2000;
const CONCURRENCY = 16;
const SAMPLE_MS = 10_000;
/** Caches, pools and V8's heap reach their size in it: no sample of it counts. */
const WARM_UP_MS = 180_000;

interface Sample {
  atMs: number;
  resident: number;
  heap: number;
  external: number;
}

/**
 * Steady load for RELAY_BENCH_SOAK_MINUTES (30): a batch of 500 every 2 s, with a read of its results when it has
 * finished. Shows whether the server's memory grows. Not in the default run.
 */
export async function benchSoak(bed: Bed): Promise<Figure[]> {
  const minutes = Number(process.env.RELAY_BENCH_SOAK_MINUTES ?? 30);
  const database = await bed.database();
  const upstream = await bed.upstream({ delayMs: 50 });
  const server = await bed.server({ database, upstream, concurrency: CONCURRENCY });
  const end = performance.now() + minutes * 60_000;
  const [items, samples] = await Promise.all([load(server, database, end), watch(server, end)]);
  const span = `${samples.length} samples of ${minutes} min, ${items} items`;
  const lowest = (values: readonly number[]) => Math.min(...values);
  const compare = (name: string, values: readonly number[], of: typeof lowest, what: string): Figure => {
    const third = Math.floor(values.length / 3);
    const [first, last] = [of(values.slice(0, third)), of(values.slice(-third))];
    return {
      name: `soak: ${name}, last third beside the first`,
      value: (100 * last) / first,
      unit: '%',
      comparedWith: `${format(first / MIB)} MiB, then ${format(last / MIB)} MiB (${what}); ${span}`,
    };
  };
  const resident = samples.map((sample) => sample.resident);
  return [
    compare('resident memory', resident, median, 'medians'),
    {
      name: '  its slope',
      value: (slope(samples, resident) * 3_600_000) / MIB,
      unit: 'MiB/hour',
      comparedWith: `least squares; from ${format(lowest(resident) / MIB)} to ${format(Math.max(...resident) / MIB)} MiB`,
    },
    // The memory left after a collection: a leak shows here first.
    compare(
      'V8 heap',
      samples.map((sample) => sample.heap),
      lowest,
      'lowest',
    ),
    compare(
      'outside of the heap',
      samples.map((sample) => sample.external),
      lowest,
      'lowest',
    ),
  ];
}

/** Returns how many items ran. */
async function load(server: BenchServer, database: BenchDatabase, end: number): Promise<number> {
  const body = submission(BATCH_ITEMS);
  const running = new Set<Promise<void>>();
  let batches = 0;
  while (performance.now() < end) {
    const next = performance.now() + EVERY_MS;
    const one = runBatch(server, database, body).finally(() => running.delete(one));
    // The race or the end of the loop reports a broken batch, whichever comes first.
    one.catch(() => {});
    running.add(one);
    batches++;
    // Never more than three behind: on a busy machine the load falls and the backlog does not grow.
    if (running.size >= 3) await Promise.race(running);
    await delay(Math.max(0, next - performance.now()));
  }
  await Promise.all(running);
  return batches * BATCH_ITEMS;
}

async function runBatch(server: BenchServer, database: BenchDatabase, body: Buffer): Promise<void> {
  const batch = await submit(server, body);
  await finished(database, batch);
  await allCompleted(database, batch, BATCH_ITEMS);
  const answer = await call(server, 'GET', `/v1/batches/${batch.id}/results`);
  const { results } = JSON.parse(answer.toString()) as { results: unknown[] };
  if (results.length !== BATCH_ITEMS) throw new Error(`${results.length} results of ${BATCH_ITEMS}`);
}

async function watch(server: BenchServer, end: number): Promise<Sample[]> {
  await delay(WARM_UP_MS);
  const samples: Sample[] = [];
  while (performance.now() < end) {
    const read = await readMeters(server);
    samples.push({
      atMs: performance.now(),
      resident: (await residentBytes(server.pid)) ?? read('process_resident_memory_bytes'),
      heap: read('nodejs_heap_size_used_bytes'),
      external: read('nodejs_external_memory_bytes'),
    });
    await delay(SAMPLE_MS);
  }
  return samples;
}

/** The slope of the line through the samples by least squares, in bytes per ms. */
function slope(samples: readonly Sample[], values: readonly number[]): number {
  const mean = (list: readonly number[]) => list.reduce((sum, one) => sum + one, 0) / list.length;
  const times = samples.map((sample) => sample.atMs);
  const [time, value] = [mean(times), mean(values)];
  const covariance = mean(times.map((at, i) => (at - time) * (values[i]! - value)));
  return covariance / mean(times.map((at) => (at - time) ** 2));
}
