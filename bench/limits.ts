import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { pathToFileURL } from 'node:url';
import { uuidv7 } from '../lib/base/clock.ts';
import { createLog } from '../lib/base/log.ts';
import { createDb, type Database } from '../lib/db/database.ts';
import { migrate } from '../lib/db/migrate.ts';
import { reserve } from '../lib/limits/reserve.ts';
import type { BucketRule } from '../lib/limits/rules.ts';
import { charge, refund, releaseConcurrency } from '../lib/limits/settle.ts';
import type { Meter, Strategy } from '../lib/model/catalog.ts';
import { startEmbedded } from '../lib/postgres/embedded.ts';
import type { Figure } from './slice.ts';

const ROUNDS = 60;
const HOLD_S = 400;
const BATCH = uuidv7();

const rule = (strategy: Strategy, meter: Meter = 'requests'): BucketRule => ({
  bucketId: uuidv7(),
  scope: 'policy',
  name: 'bench',
  meter,
  amount: 1e9,
  window: meter === 'concurrency' ? 0 : 60,
  strategy,
});

let nextIdx = 0;
const items = (n: number, rulesOf: (i: number) => readonly BucketRule[]) =>
  Array.from({ length: n }, (_, i) => ({ batchId: BATCH, idx: nextIdx++, claimNo: 1, rules: rulesOf(i) }));

/** Median in milliseconds; the first tenth warms up and does not count. */
async function median(work: () => Promise<unknown>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < ROUNDS; i++) {
    const start = performance.now();
    await work();
    if (i >= ROUNDS / 10) times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[times.length >> 1]!;
}

/** The cost of the limits of one claim, beside an empty round trip on the same connection. */
export async function benchLimits(dsn?: string): Promise<Figure[]> {
  if (dsn === undefined) return onEmbedded(benchLimits);
  const db = createDb({ dsn, max: 1, prepared: true, applicationName: 'bench', log: createLog('silent') });
  try {
    return await measure(db);
  } finally {
    await db.close();
  }
}

async function onEmbedded(work: (dsn: string) => Promise<Figure[]>): Promise<Figure[]> {
  const dataDir = await mkdtemp(join(tmpdir(), 'relay-bench-'));
  const embedded = await startEmbedded({ dataDir, log: createLog('silent') });
  try {
    await migrate(embedded.dsn, createLog('silent'));
    return await work(embedded.dsn);
  } finally {
    await embedded.stop();
    await rm(dataDir, { recursive: true, force: true });
  }
}

async function measure(db: Database): Promise<Figure[]> {
  const three = [rule('token-bucket'), rule('sliding-window'), rule('fixed-window')];
  const mixed = Array.from({ length: 10 }, () => [...three, rule('session-window')]);
  const gauge = [...three, rule('token-bucket', 'concurrency')];
  const tokens = [...three, rule('fixed-window', 'tokens')];
  const empty = await median(() => db.query({ name: 'bench_empty', text: 'select 1', values: [] }));
  const ofReserve = (n: number, rulesOf: (i: number) => readonly BucketRule[]) =>
    median(() => reserve(db, items(n, rulesOf), HOLD_S));
  const figures: [string, number][] = [
    ['reserve 64 items, one policy of three rules', await ofReserve(64, () => three)],
    ['reserve 1,000 items, one policy of three rules', await ofReserve(1000, () => three)],
    [
      'reserve 1,000 items, ten policies of four rules, never two alike in a row',
      await ofReserve(1000, (i) => mixed[i % 10]!),
    ],
    ['reserve and free 64 items with a concurrency rule', await median(() => reserveAndFree(db, 64, gauge))],
    ['reserve and free 1,000 items with a concurrency rule', await median(() => reserveAndFree(db, 1000, gauge))],
    ['charge a group commit of 256 items', await median(() => charge(db, items(256, () => tokens).map(withTokens)))],
    [
      'refund 64 items',
      await median(() =>
        refund(
          db,
          items(64, () => three).map((item) => ({ ...item, atUs: 0 })),
        ),
      ),
    ],
  ];
  const comparedWith = `${(empty * 1000).toFixed(0)} us an empty round trip`;
  return figures.map(([name, ms]) => ({ name, value: Math.round(ms * 1000), unit: 'us', comparedWith }));
}

const withTokens = ({ rules }: { rules: readonly BucketRule[] }) => ({ rules, tokens: { input: 100, output: 50 } });

async function reserveAndFree(db: Database, n: number, rules: readonly BucketRule[]): Promise<void> {
  const requests = items(n, () => rules);
  await reserve(db, requests, HOLD_S);
  await releaseConcurrency(db, requests);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const { name, value, unit, comparedWith } of await benchLimits(process.env.RELAY_BENCH_PG_DSN)) {
    process.stdout.write(`${name}: ${value} ${unit} (${comparedWith})\n`);
  }
}
