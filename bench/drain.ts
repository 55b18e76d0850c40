import { setTimeout as delay } from 'node:timers/promises';
import { createBucket, startFaux, TEST_AWS_ENV } from '../test/support/aws.ts';
import { bareLoop } from './support/bare-loop.ts';
import { allCompleted, finished, submit } from './support/batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';
import { KEYS, submission } from './support/items.ts';
import { readMeters } from './support/meters.ts';

const ITEMS = 20_000;
const PAIRS = 3;
const WARM_UP = 2000;
/** Postgres' processes report their statistics once a second. */
const STATISTICS_MS = 1500;
/** The targets with usage events and limits ("Targets" in docs/spec/architecture.md). */
const TARGETS: ReadonlyMap<number, number> = new Map([
  [8, 20],
  [64, 35],
]);

/** Submits a batch and returns the ms from its 202 to its last final item. */
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
    const before = await readCosts(server, database);
    const pairs = await drainPairs(server, database, upstream.url, concurrency);
    const after = await readCosts(server, database);
    await server.stop();
    figures.push(ratio(`drain, concurrency ${concurrency}`, pairs, TARGETS.get(concurrency)));
    figures.push(...costs(concurrency, before, after));
  }
  return figures;
}

/** The same at concurrency 64 with payloads in S3 and wake-ups by SQS, both emulated in the benchmark's own process. */
export async function benchDrainAws(bed: Bed): Promise<Figure[]> {
  const upstream = await bed.upstream();
  const database = await bed.database();
  const aws = await startFaux();
  bed.defer(() => aws.stop());
  await createBucket(aws.endpoint, 'bench');
  const { queueUrl } = aws.faux.createQueue('bench');
  const env = {
    ...TEST_AWS_ENV,
    AWS_ENDPOINT_URL: aws.endpoint,
    RELAY_PAYLOAD_STORE: 's3',
    RELAY_S3_BUCKET: 'bench',
    RELAY_QUEUE: 'sqs',
    RELAY_SQS_QUEUE_URL: queueUrl,
  };
  const server = await bed.server({ database, upstream, concurrency: 64, env });
  await drainOnce(server, database, WARM_UP);
  const pairs = await drainPairs(server, database, upstream.url, 64);
  return [ratio('drain through S3 and SQS emulation, concurrency 64', pairs, 20)];
}

interface Pair {
  bare: number;
  ours: number;
}

async function drainPairs(
  server: BenchServer,
  database: BenchDatabase,
  upstreamUrl: string,
  concurrency: number,
): Promise<Pair[]> {
  const pairs: Pair[] = [];
  for (let i = 0; i < PAIRS; i++) {
    const bare = await bareLoop(upstreamUrl, concurrency, ITEMS, WARM_UP);
    pairs.push({ bare, ours: await drainOnce(server, database, ITEMS) });
  }
  return pairs;
}

function ratio(name: string, pairs: readonly Pair[], atLeast?: number): Figure {
  const perSecond = (ms: readonly number[]) => format(ITEMS / (median(ms) / 1000));
  return {
    name,
    value: 100 * median(pairs.map(({ bare, ours }) => bare / ours)),
    unit: '% of bare',
    comparedWith: `bare undici loop ${perSecond(pairs.map((p) => p.bare))} items/s, this ${perSecond(pairs.map((p) => p.ours))}`,
    ...(atLeast === undefined ? {} : { target: { atLeast } }),
  };
}

interface Meters {
  cpuSeconds: number;
  /** Since the last read of the metrics. */
  loopDelaySeconds: number;
  transactions: number;
  walBytes: number;
  storedBytes: number;
  /** Syncs of the write-ahead log, and of segments: each segment and its directory is synced. */
  syncs: number;
}

function costs(concurrency: number, before: Meters, after: Meters): Figure[] {
  const perItem = (meter: keyof Meters) => (after[meter] - before[meter]) / (PAIRS * ITEMS);
  const figure = (name: string, value: number, unit: string, comparedWith: string, atMost?: number): Figure => ({
    name: `  ${name}, concurrency ${concurrency}`,
    value,
    unit,
    comparedWith,
    ...(atMost === undefined ? {} : { target: { atMost } }),
  });
  const loopDelay = after.loopDelaySeconds * 1000;
  return [
    figure('CPU of the server', perItem('cpuSeconds') * 1e6, 'us/item', 'process_cpu_seconds_total, submits included'),
    figure('event loop delay p99', loopDelay, 'ms', 'an idle loop shows about 10 ms: its resolution', 20),
    figure('transactions', perItem('transactions'), '/item', 'pg_stat_database', concurrency === 64 ? 0.1 : undefined),
    figure('fsyncs', perItem('syncs'), '/item', 'pg_stat_io for the WAL, two for each group commit'),
    figure('WAL', perItem('walBytes'), 'bytes/item', 'pg_current_wal_lsn'),
    figure('size in Postgres', perItem('storedBytes'), 'bytes/item', 'pg_database_size, dead rows included'),
  ];
}

async function readCosts(server: BenchServer, database: BenchDatabase): Promise<Meters> {
  await delay(STATISTICS_MS);
  const own = database.queries();
  const [row] = await database.sql<{ transactions: number; wal: number; size: number; syncs: number }>(`
    select (select sum(fsyncs)::float8 from pg_stat_io where object = 'wal') as syncs, xact_commit::float8 as transactions, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 as wal,
      pg_database_size(datname)::float8 as size
    from pg_stat_database where datname = current_database()`);
  const read = await readMeters(server);
  return {
    cpuSeconds: read('process_cpu_seconds_total'),
    loopDelaySeconds: read('nodejs_eventloop_lag_p99_seconds'),
    transactions: row!.transactions - own,
    walBytes: row!.wal,
    storedBytes: row!.size,
    syncs: row!.syncs + 2 * read('relay_batch_flush_seconds_count'),
  };
}
