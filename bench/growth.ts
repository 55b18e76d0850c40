import { randomUUID } from 'node:crypto';
import { uuidv7 } from '../lib/base/clock.ts';
import { findBatchWithCounts, findBatchWithStates, listBatches } from '../lib/batch/batches.sql.ts';
import { cancelBatchRow } from '../lib/batch/cancel.sql.ts';
import { referencedObjects } from '../lib/batch/object-references.sql.ts';
import { listUncompacted } from '../lib/batch/results/compact.sql.ts';
import { readOpenWork } from '../lib/worker/claim.sql.ts';
import { commitOutcomes } from '../lib/worker/commit.sql.ts';
import { unsentFacts } from '../lib/worker/item/outcome.ts';
import { insertWorker, rescueItems, sendHeartbeat } from '../lib/worker/lease/lease.sql.ts';
import { PERIODS } from '../lib/worker/periods.ts';
import { deleteExpiredBatches, expireItems } from '../lib/worker/sweep/sweep.sql.ts';
import type { Bed, BenchDatabase } from './support/bed.ts';
import { CLAIM, type Claims, openClaims } from './support/claimer.ts';
import { type Figure, format, quantile, timed } from './support/figure.ts';

const BATCHES = 200;
const PENDING_EACH = 5000;
/** Finished batches: big ones of 50,000 items and small ones of 1,000, each half of the history. */
const BIG = 50_000;
const SMALL = 1000;
const ROUNDS = 150;
const ORPHANS = 500;
const OWNERS = 20;

/**
 * Every statement whose time could depend on history, on 1,000,000 pending items in 200 batches, with and without
 * 10,000,000 finished items beside them (RELAY_BENCH_GROWTH_ITEMS). Not in the default run: filling takes minutes.
 */
export async function benchGrowth(bed: Bed): Promise<Figure[]> {
  const history = Number(process.env.RELAY_BENCH_GROWTH_ITEMS ?? 10_000_000);
  const [without, grown] = [await createScene(bed, 0), await createScene(bed, history)];
  const figures: Figure[] = [];
  for (const [name, rounds, share] of [
    ['claim', ROUNDS, 0.99],
    ['commit', ROUNDS, 0.99],
    ['read of the open work', 50, 0.5],
    ['status', 50, 0.5],
    ['status with items', 50, 0.5],
    ['list of 10', 50, 0.5],
    ['beat', 50, 0.5],
    ['expiry', 50, 0.5],
    ['look for uncompacted', 50, 0.5],
    ['look for retention', 50, 0.5],
    ['references of 500 objects', 20, 0.5],
    ['rescue of 64', 10, 0.5],
    ['cancel of 5,000', 10, 0.5],
  ] as const) {
    const times = { without: [] as number[], grown: [] as number[] };
    for (let i = 0; i < rounds; i++) {
      times.without.push(await timed(without[name]!));
      times.grown.push(await timed(grown[name]!));
    }
    const [before, after] = [quantile(times.without, share), quantile(times.grown, share)];
    figures.push({
      name: `${name}, ${format(history)} finished, ${share === 0.5 ? 'median' : 'p99'}`,
      value: after / before,
      unit: 'times',
      comparedWith: `without history ${format(before)} ms, with it ${format(after)} ms`,
      ...(name === 'claim' ? { target: { atMost: 2 } } : {}),
    });
  }
  const pages: number[] = [];
  for (let i = 0; i < 10; i++) pages.push(await timed(grown.page!));
  figures.push({
    name: `list of ${Math.min(100, history / 2 / BIG)} finished batches of 50,000`,
    value: quantile(pages, 0.5),
    unit: 'ms',
    comparedWith: 'the list of 10 above',
  });
  return figures;
}

type Scene = Readonly<Record<string, () => Promise<unknown>>>;

async function createScene(bed: Bed, history: number): Promise<Scene> {
  const database = await bed.database();
  await fillHistory(database, history);
  await fillPending(database);
  const claims = openClaims(bed, database);
  const { db } = claims;
  const pending = await database.sql<{ id: string; owner: string }>(
    'select id, owner from batches where completed_at is null order by id desc',
  );
  const ids = await database.sql<{ input: string; result: string | null }>(
    'select input_id as input, results_id as result from batches order by completed_at limit $1',
    [ORPHANS / 2],
  );
  const objects = ids.flatMap(({ input, result }) => [input, result ?? uuidv7(0), uuidv7(1)]).slice(0, ORPHANS);
  const work = await createWork(claims);
  const [first] = pending;
  const key = { surface: 'relay', owner: first!.owner, id: first!.id };
  return {
    ...work,
    'read of the open work': () => readOpenWork(db),
    status: () => findBatchWithCounts(db, key),
    'status with items': () => findBatchWithStates(db, key),
    'list of 10': () => listBatches(db, { surface: 'relay', owner: first!.owner, after: null, limit: 10 }),
    page: () => listBatches(db, { surface: 'relay', owner: 'big', after: null, limit: 100 }),
    expiry: () => expireItems(db, 'bench'),
    'look for uncompacted': () => listUncompacted(db, 50),
    'look for retention': () => deleteExpiredBatches(db, 10_000),
    'references of 500 objects': async () => {
      for (const kind of ['input', 'segment', 'result', 'index'] as const) await referencedObjects(db, kind, objects);
    },
    'cancel of 5,000': () =>
      db.transaction((tx) => cancelBatchRow(tx, { ...pending.pop()!, surface: 'relay', instance: 'bench' })),
  };
}

/** Claim, commit, heartbeat and rescue as workers do them. */
async function createWork({ db, claim }: Claims): Promise<Scene> {
  const worker = randomUUID();
  await insertWorker(db, worker, { instance: 'bench', slots: 8, invocation: false });
  const claimed: Awaited<ReturnType<typeof claim>>[] = [];
  const lost = await Promise.all(Array.from({ length: 10 }, async () => randomUUID()));
  for (const id of lost) {
    await insertWorker(db, id, { instance: 'lost', slots: 8, invocation: false });
    await claim(id);
  }
  return {
    claim: async () => claimed.push(await claim(worker)),
    async commit() {
      const items = claimed.pop()!;
      const rows = items.map((item) => ({
        batchId: item.batch.id,
        idx: item.idx,
        claimNo: item.claimNo,
        state: 'completed' as const,
        error: null,
        span: { offset: item.idx, length: 500, crc: 1 },
        usage: unsentFacts(item, 'internal', null),
      }));
      const routes = rows.map(() => null);
      const group = { workerId: worker, instance: 'bench', segmentId: uuidv7(Date.now()), rows, routes, newRoutes: [] };
      const { committed } = await commitOutcomes(db, group);
      if (committed !== CLAIM) throw new Error(`committed ${committed} items instead of ${CLAIM}`);
    },
    beat: () => sendHeartbeat(db, worker, [], { blocked: false, passedOver: [] }, PERIODS),
    'rescue of 64': async () => {
      const { rescued } = await rescueItems(db, [lost.pop()!], 'bench', 3);
      if (rescued !== CLAIM) throw new Error(`rescued ${rescued} items instead of ${CLAIM}`);
    },
  };
}

/** A version 7 id of the moment `at`, as submits make them. */
const ID_AT = `(substr(uuidv7_floor(at)::text, 1, 14) || '7' || substr(md5(random()::text), 1, 3) || '-8'
  || substr(md5(random()::text), 1, 3) || '-' || substr(md5(random()::text), 1, 12))::uuid`;

/** Finished and compacted batches of the last months. One owner has all big ones. */
async function fillHistory({ sql }: BenchDatabase, items: number): Promise<void> {
  if (items === 0) return;
  for (const [size, owner] of [
    [BIG, `'big'`],
    [SMALL, `'owner-' || n % ${OWNERS}`],
  ] as const) {
    await sql(
      `insert into batches (id, owner, shape, total_items, open_items, created_at, completed_at, input_id, results_id,
         final_counts, credential_kind, credential_id)
       select ${ID_AT}, ${owner}, 'openai', $2, 0, at, at + interval '1 hour', gen_random_uuid(), gen_random_uuid(),
         json_build_object('completed', $2::int), 'key', 'bench'
       from (select n, clock_timestamp() - interval '1 day' - n * interval '10 minutes' as at
         from generate_series(1, $1::int) as n) t`,
      [items / 2 / size, size],
    );
  }
  // In the order of their creation, like the pages of a table that has grown.
  await sql(
    `insert into batch_items (batch_id, idx, state, claim_no, input_offset, input_length, input_crc, worker_id, attempts,
       segment_id, output_offset, output_length, output_crc, finalized_at)
     select b.id, idx, 'completed', 1, idx * 180, 180, 0, b.input_id, 1, b.results_id, idx * 500, 500, 1, b.completed_at
     from (select * from batches order by id) b, generate_series(0, b.total_items - 1) as idx`,
  );
}

async function fillPending({ sql }: BenchDatabase): Promise<void> {
  await sql(
    `insert into batches (id, owner, shape, total_items, open_items, input_id, credential_kind, credential_id)
     select ${ID_AT}, 'owner-' || n % ${OWNERS}, 'openai', $2, $2, gen_random_uuid(), 'key', 'bench'
     from (select n, clock_timestamp() as at from generate_series(1, $1::int) as n) t`,
    [BATCHES, PENDING_EACH],
  );
  await sql(
    `insert into batch_cursors (batch_id, owner, total_items)
     select id, owner, total_items from batches where completed_at is null`,
  );
  await sql(
    `insert into batch_items (batch_id, idx, input_offset, input_length, input_crc)
     select id, idx, idx * 180, 180, 0 from batches, generate_series(0, total_items - 1) as idx where completed_at is null`,
  );
  await sql('vacuum analyze batches, batch_cursors, batch_items');
}
