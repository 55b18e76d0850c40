import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { claimItems, readOpenWork, releaseUnheld } from '../../../lib/worker/claim.sql.ts';
import { planClaim } from '../../../lib/worker/fair.ts';
import { type lockSilentWorkers, rescueItems } from '../../../lib/worker/lease/lease.sql.ts';
import { releaseItems } from '../../../lib/worker/release.sql.ts';
import { claim, makeBatch, makeWorker, openWork } from '../../support/batches.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  await sql('delete from batch_cursors');
  await sql('delete from batch_items');
  await sql('delete from batches');
  await sql('delete from workers');
});

const sql = (text: string, values?: unknown[]) => database.sql(text, values);
const idxs = (rows: { idx: number }[]) => rows.map(({ idx }) => idx);

function release(workerId: string, rows: { batchId: string; idx: number; claimNo: number }[], delayMs = 0) {
  const spent = {
    delayMs,
    attempts: 0,
    rounds: 0,
    waitedMs: 0,
    loadFailed: false,
    failedKey: null,
    failedRounds: 0,
    wait: null,
  };
  return releaseItems(
    database.db,
    workerId,
    'test',
    rows.map(({ batchId, idx, claimNo }) => ({ batchId, idx, claimNo, ...spent })),
  );
}

test('eight claimers at once never get the same item, and leave none', async () => {
  const batches = await Promise.all([
    makeBatch(database.db, 400),
    makeBatch(database.db, 700, { owner: 'bob' }),
    makeBatch(database.db, 1),
  ]);
  const seen: string[] = [];
  const work = async () => {
    const workerId = await makeWorker(database.db);
    for (;;) {
      const { batches } = await readOpenWork(database.db);
      const plan = planClaim(batches, 13);
      if (plan.batchIds.length === 0) return;
      const { rows } = await claimItems(database.db, workerId, plan.batchIds, plan.counts, plan.due);
      for (const row of rows) seen.push(`${row.batchId}/${row.idx}`);
      // Some go back, and are claimed again under a higher number.
      const back = rows.filter((row) => row.claimNo === 1 && row.idx % 7 === 0);
      if (back.length > 0) await release(workerId, back);
    }
  };
  await Promise.all(Array.from({ length: 8 }, work));
  const again = batches.flatMap((id, i) => Array.from({ length: [400, 700, 1][i]! }, (_, idx) => `${id}/${idx}`));
  const twice = again.filter((name) => Number(name.split('/')[1]) % 7 === 0);
  expect(seen.sort()).toEqual([...again, ...twice].sort());
  expect(await sql(`select 1 from batch_items where state <> 'running'`)).toEqual([]);
});

test('claims in idx order from the cursor, which goes with the last fresh item', async () => {
  const id = await makeBatch(database.db, 5);
  const worker = await makeWorker(database.db);
  expect(idxs(await claim(database.db, worker, id, 2))).toEqual([0, 1]);
  expect(await openWork(database.db, id)).toMatchObject({ fresh: 3, running: 2, due: 0 });
  expect(idxs(await claim(database.db, worker, id, 10))).toEqual([2, 3, 4]);
  expect(await sql('select 1 from batch_cursors')).toEqual([]);
  expect(await openWork(database.db, id)).toMatchObject({ fresh: 0, running: 5, due: 0 });
  expect(await claim(database.db, worker, id, 10)).toEqual([]);
});

test('gives the fields of the row and raises the claim number each time', async () => {
  const id = await makeBatch(database.db, 1, { spans: { offsets: [7], lengths: [9], crcs: [4_294_967_295] } });
  const worker = await makeWorker(database.db);
  const [first] = await claim(database.db, worker, id, 1);
  expect(first).toEqual({
    batchId: id,
    idx: 0,
    claimNo: 1,
    inputOffset: 7,
    inputLength: 9,
    inputCrc: 4_294_967_295,
    attempts: 0,
    rounds: 0,
    waitedMs: 0,
    loadFailures: 0,
    failedKey: null,
    failedRounds: 0,
    failingForMs: null,
  });
  await releaseItems(database.db, worker, 'test', [
    {
      ...{ batchId: id, idx: 0, claimNo: 1, delayMs: 0 },
      ...{ attempts: 3, rounds: 2, waitedMs: 250.6, loadFailed: true, failedKey: '0123456789ab', failedRounds: 1 },
      wait: null,
    },
  ]);
  const [again] = await claim(database.db, worker, id, 0, 1);
  expect(again).toMatchObject({
    claimNo: 2,
    attempts: 3,
    rounds: 2,
    waitedMs: 251,
    loadFailures: 1,
    failedKey: '0123456789ab',
    failedRounds: 1,
    failingForMs: expect.any(Number),
  });
});

test('a worker without a lease gets nothing, fresh or released', async () => {
  const id = await makeBatch(database.db, 2);
  const worker = await makeWorker(database.db);
  await release(worker, await claim(database.db, worker, id, 1));
  await sql('delete from workers');
  expect(await claim(database.db, worker, id, 2, 2)).toEqual([]);
  expect(await sql(`select 1 from batch_items where state <> 'available'`)).toEqual([]);
});

test('a claim that meets a rescue of its own worker gets nothing that the rescue does not see', async () => {
  const id = await makeBatch(database.db, 2);
  const worker = await makeWorker(database.db);
  await sql(`update workers set beat_at = clock_timestamp() - interval '1 hour'`);
  let claiming: Promise<unknown[]> | undefined;
  await database.db.transaction(async (tx) => {
    expect(await lockSilentWorkersOfAnyAge(tx)).toEqual([worker]);
    claiming = claim(database.db, worker, id, 2);
    await waitForLockWait();
    await rescueItems(tx, [worker], 'test', 3);
  });
  expect(await claiming).toEqual([]);
});

test('a released item is claimed at its time, and not before', async () => {
  const id = await makeBatch(database.db, 2);
  const worker = await makeWorker(database.db);
  const rows = await claim(database.db, worker, id, 2);
  await release(worker, rows, 60_000);
  expect(await openWork(database.db, id)).toMatchObject({ fresh: 0, running: 0, due: 0 });
  expect(await claim(database.db, worker, id, 5, 5)).toEqual([]);
  const { nextDueMs } = await readOpenWork(database.db);
  expect(nextDueMs).toBeGreaterThan(50_000);
  expect(nextDueMs).toBeLessThanOrEqual(60_000);
  await sql(`update batch_items set not_before = clock_timestamp() - interval '1 ms' where idx = 1`);
  expect(await openWork(database.db, id)).toMatchObject({ due: 1 });
  expect(idxs(await claim(database.db, worker, id, 5, 5))).toEqual([1]);
});

test('items of a cancelled batch are not claimed, released ones neither', async () => {
  const id = await makeBatch(database.db, 3);
  const worker = await makeWorker(database.db);
  await release(worker, await claim(database.db, worker, id, 1));
  await sql(`update batches set status = 'cancelled', cancelled_at = clock_timestamp()`);
  await sql('delete from batch_cursors');
  expect(await openWork(database.db, id)).toBeUndefined();
  expect(await claim(database.db, worker, id, 3, 3)).toEqual([]);
});

test('items whose completion window has closed are not claimed', async () => {
  const id = await makeBatch(database.db, 3, { completionWindowSeconds: 3600 });
  const worker = await makeWorker(database.db);
  await release(worker, await claim(database.db, worker, id, 1));
  expect(await openWork(database.db, id)).toMatchObject({ fresh: 2, due: 1 });
  await sql(`update batches set expires_at = clock_timestamp() - interval '1 ms'`);
  expect(await openWork(database.db, id)).toBeUndefined();
  // Released ones are picked by the statement itself, beside those of other batches.
  expect(await claim(database.db, worker, id, 0, 3)).toEqual([]);
});

test('gives back running items that their worker does not hold', async () => {
  const id = await makeBatch(database.db, 4);
  const other = await makeBatch(database.db, 1);
  const worker = await makeWorker(database.db);
  const stranger = await makeWorker(database.db);
  await claim(database.db, worker, id, 3);
  await claim(database.db, stranger, id, 1);
  await claim(database.db, worker, other, 1);
  await releaseUnheld(database.db, worker, 'test', [id], [1]);
  const states = await sql('select batch_id, idx, state from batch_items order by batch_id, idx');
  expect(states).toEqual([
    ...['available', 'running', 'available', 'running'].map((state, idx) => ({ batch_id: id, idx, state })),
    { batch_id: other, idx: 0, state: 'available' },
  ]);
  expect(idxs(await claim(database.db, stranger, id, 9, 9))).toEqual([0, 2]);
  expect(idxs(await claim(database.db, stranger, other, 9, 9))).toEqual([0]);
});

async function lockSilentWorkersOfAnyAge(tx: Parameters<typeof lockSilentWorkers>[0]): Promise<string[]> {
  // As lockSilentWorkers, without its guard against a young Postgres.
  const result = await tx.query<{ id: string }>({
    name: '',
    text: `select id from workers where beat_at < clock_timestamp() - interval '30 seconds' for update skip locked`,
    values: [],
  });
  return result.rows.map(({ id }) => id);
}

/** Resolves when some backend of this database waits for a lock; or after a second without: then nothing will. */
async function waitForLockWait(): Promise<void> {
  for (let i = 0; i < 100; i++) {
    const waiting = await sql(
      `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    if (waiting.length > 0) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

test('takes the due items of the batches that were planned, not whoever waits longest', async () => {
  const [first, second] = [await makeBatch(database.db, 3), await makeBatch(database.db, 3)];
  const worker = await makeWorker(database.db);
  await release(worker, await claim(database.db, worker, first, 3));
  await release(worker, await claim(database.db, worker, second, 3));
  expect(idxs(await claim(database.db, worker, second, 0, 2))).toEqual([0, 1]);
  expect(await openWork(database.db, first)).toMatchObject({ due: 3 });
});

test('releases an item whose upstream named a moment beyond every interval', async () => {
  const id = await makeBatch(database.db, 1);
  const worker = await makeWorker(database.db);
  const [row] = await claim(database.db, worker, id, 1);
  const spent = { attempts: 1, rounds: 1, waitedMs: 1e15, loadFailed: false, wait: null };
  await releaseItems(database.db, worker, 'test', [{ ...row!, ...spent, delayMs: 1e18 }]);
  expect(await openWork(database.db, id)).toMatchObject({ running: 0, due: 0 });
});
