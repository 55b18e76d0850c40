import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { cancelBatchRow } from '../../../lib/batch/cancel.sql.ts';
import type { Db } from '../../../lib/db/database.ts';
import { commitOutcomes, type OutcomeRow, routeId } from '../../../lib/worker/commit.sql.ts';
import { NO_ROUTE } from '../../../lib/worker/item/outcome.ts';
import { lockFormerWorkers, lockSilentWorkers, rescueItems } from '../../../lib/worker/lease/lease.sql.ts';
import { type ReleaseRow, releaseItems } from '../../../lib/worker/release.sql.ts';
import { expireItems } from '../../../lib/worker/sweep/sweep.sql.ts';
import { claim, makeBatch, makeWorker, success } from '../../support/batches.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  for (const table of ['batch_cursors', 'batch_items', 'batches', 'workers']) await sql(`delete from ${table}`);
});

const sql = (text: string, values?: unknown[]) => database.sql(text, values);

function commit(workerId: string, rows: OutcomeRow[], db: Db = database.db, segmentId = uuidv7()) {
  const routes = rows.map(() => routeId(NO_ROUTE));
  const newRoutes = [{ id: routeId(NO_ROUTE), facts: NO_ROUTE }];
  return commitOutcomes(db, { workerId, instance: 'test', segmentId, rows, routes, newRoutes });
}

function released(row: { batchId: string; idx: number; claimNo: number }, more: Partial<ReleaseRow> = {}): ReleaseRow {
  const { batchId, idx, claimNo } = row;
  const counts = { attempts: 0, rounds: 0, waitedMs: 0, failedRounds: 0 };
  const spent = { ...counts, loadFailed: false, failedKey: null, wait: null };
  return { batchId, idx, claimNo, delayMs: 0, ...spent, ...more };
}

const release = (workerId: string, rows: ReleaseRow[], db: Db = database.db) =>
  releaseItems(db, workerId, 'test', rows);
const cancel = (id: string, owner = 'ann', surface = 'relay') =>
  database.db.transaction((tx) => cancelBatchRow(tx, { id, owner, surface, instance: 'test' }));
const states = async (id: string) =>
  (await sql('select state from batch_items where batch_id = $1 order by idx', [id])).map(({ state }) => state);
const batch = async (id: string) => (await sql('select * from batches where id = $1', [id]))[0]!;
const events = (id: string) => sql('select * from usage_events where batch_id = $1 order by batch_idx', [id]);

/** Resolves when a backend of this database waits for a lock. */
async function lockWait(): Promise<void> {
  for (;;) {
    const waiting = await sql(
      `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    );
    if (waiting.length > 0) return;
  }
}

describe('the group commit', () => {
  test('makes items final with span, event, segment reference and count, in one statement', async () => {
    const id = await makeBatch(database.db, 3);
    const worker = await makeWorker(database.db);
    const [first, second] = await claim(database.db, worker, id, 2);
    const segment = uuidv7();
    expect(await commit(worker, [success(first!, 10), success(second!, 12)], database.db, segment)).toEqual({
      committed: 2,
      finished: [],
    });
    expect(await states(id)).toEqual(['completed', 'completed', 'available']);
    expect(
      await sql('select segment_id, output_offset, output_length from batch_items where idx = 1 and batch_id = $1', [
        id,
      ]),
    ).toEqual([{ segment_id: segment, output_offset: 12, output_length: 2 }]);
    expect(await sql('select batch_id from segment_refs where segment_id = $1', [segment])).toEqual([{ batch_id: id }]);
    expect(await batch(id)).toMatchObject({ open_items: 1, completed_at: null });
    expect(await events(id)).toMatchObject([
      { batch_idx: 0, status: 200, attempts: 1, tokens_input: 3, tokens_output: 4, cost_nanos: 12, instance: 'test' },
      { batch_idx: 1 },
    ]);
  });

  test('case 16: leaves alone what is another worker’s, of another claim, or final', async () => {
    const id = await makeBatch(database.db, 4);
    const [worker, stranger] = [await makeWorker(database.db), await makeWorker(database.db)];
    const rows = await claim(database.db, worker, id, 4);
    await commit(worker, [success(rows[3]!)]);
    const before = await sql('select * from batch_items where batch_id = $1 order by idx', [id]);
    expect(await commit(stranger, [success(rows[0]!)])).toEqual({ committed: 0, finished: [] });
    expect(await commit(worker, [{ ...success(rows[1]!), claimNo: 2 }])).toEqual({ committed: 0, finished: [] });
    expect(await commit(worker, [{ ...success(rows[3]!), state: 'discarded', error: 'x' }])).toEqual({
      committed: 0,
      finished: [],
    });
    expect(await sql('select * from batch_items where batch_id = $1 order by idx', [id])).toEqual(before);
    expect(await events(id)).toHaveLength(1);
    expect(await batch(id)).toMatchObject({ open_items: 3 });
    // Beside those it records what is its own.
    expect(await commit(worker, [success(rows[0]!), success(rows[3]!)])).toEqual({ committed: 1, finished: [] });
  });

  test('case 33: the same commit again, its first answer lost, records nothing twice and keeps the first segment', async () => {
    const id = await makeBatch(database.db, 2);
    const worker = await makeWorker(database.db);
    const rows = (await claim(database.db, worker, id, 2)).map((row) => success(row));
    const segment = uuidv7();
    expect(await commit(worker, rows, database.db, segment)).toEqual({ committed: 2, finished: [id] });
    expect(await commit(worker, rows)).toEqual({ committed: 0, finished: [] });
    expect(await events(id)).toHaveLength(2);
    expect(await sql('select distinct segment_id from batch_items where batch_id = $1', [id])).toEqual([
      { segment_id: segment },
    ]);
    expect(await sql('select segment_id from segment_refs where batch_id = $1', [id])).toEqual([
      { segment_id: segment },
    ]);
  });

  test('case 32: two sessions with the last two items end the batch exactly once', async () => {
    const id = await makeBatch(database.db, 2);
    const [a, b] = [await makeWorker(database.db), await makeWorker(database.db)];
    const [first] = await claim(database.db, a, id, 1);
    const [second] = await claim(database.db, b, id, 1);
    let late: ReturnType<typeof commit> | undefined;
    const early = await database.db.transaction(async (tx) => {
      const result = await commit(a, [success(first!)], tx);
      late = commit(b, [success(second!)]);
      await lockWait();
      return result;
    });
    expect([early, await late]).toEqual([
      { committed: 1, finished: [] },
      { committed: 1, finished: [id] },
    ]);
    expect((await batch(id)).completed_at).toBeInstanceOf(Date);
  });

  test('replicas that commit into the same batches in opposite orders both get through', async () => {
    const ids = [await makeBatch(database.db, 100), await makeBatch(database.db, 100)];
    const workers = [await makeWorker(database.db), await makeWorker(database.db)];
    const work = async (worker: string) => {
      for (let n = 0; n < 25; n++) {
        const rows = (await Promise.all(ids.map((id) => claim(database.db, worker, id, 2)))).flat();
        rows.sort((x, y) => (x.batchId < y.batchId ? -1 : x.batchId > y.batchId ? 1 : x.idx - y.idx));
        await commit(
          worker,
          rows.map((row) => success(row)),
        );
      }
    };
    await Promise.all(workers.map(work));
    for (const id of ids) {
      const left = (await batch(id)).open_items as number;
      expect(left).toBe((await states(id)).filter((state) => state !== 'completed').length);
      expect(await events(id)).toHaveLength(100 - left);
    }
  });

  test('frees the concurrency of the claim it ends, and of no other', async () => {
    const id = await makeBatch(database.db, 1);
    const worker = await makeWorker(database.db);
    const [row] = await claim(database.db, worker, id, 1);
    await sql(
      `insert into limit_concurrency (bucket_id, batch_id, idx, claim_no, held_until_us)
      select gen_random_uuid(), $1::uuid, 0, n, 0 from unnest(array[1, 2]) n`,
      [id],
    );
    await commit(worker, [success(row!)]);
    expect(await sql('select claim_no from limit_concurrency where batch_id = $1', [id])).toEqual([{ claim_no: 2 }]);
  });
});

describe('a release', () => {
  test('keeps what was spent and waits its time', async () => {
    const id = await makeBatch(database.db, 1);
    const worker = await makeWorker(database.db);
    const [row] = await claim(database.db, worker, id, 1);
    await release(worker, [released(row!, { delayMs: 5000, attempts: 3, rounds: 1, waitedMs: 7 })]);
    const [item] = await sql(`select *, not_before > clock_timestamp() as waits from batch_items where batch_id = $1`, [
      id,
    ]);
    expect(item).toMatchObject({
      state: 'available',
      worker_id: null,
      attempts: 3,
      rounds: 1,
      waited_ms: 7,
      waits: true,
    });
    expect(await events(id)).toEqual([]);
  });

  test('waits 30 days at most, whatever an upstream asks for, and counts waits as far as they can be counted', async () => {
    const id = await makeBatch(database.db, 1);
    const worker = await makeWorker(database.db);
    const [row] = await claim(database.db, worker, id, 1);
    await release(worker, [released(row!, { delayMs: 1e18, waitedMs: 1e12 })]);
    const [item] = await sql(
      `select waited_ms, not_before - clock_timestamp() between '29 days 23 hours' and '30 days' as waits
      from batch_items where batch_id = $1`,
      [id],
    );
    expect(item).toEqual({ waited_ms: 2 ** 31 - 1, waits: true });
  });

  test('counts unreadable inputs, and forgets them when one was read', async () => {
    const id = await makeBatch(database.db, 1);
    const worker = await makeWorker(database.db);
    const again = async (loadFailed: boolean) => {
      const [row] = await claim(database.db, worker, id, 1, 1);
      await release(worker, [released(row!, { loadFailed })]);
      return (await sql('select load_failures, load_failed_at from batch_items where batch_id = $1', [id]))[0]!;
    };
    const first = await again(true);
    expect(first).toMatchObject({ load_failures: 1 });
    expect(await again(true)).toEqual({ load_failures: 2, load_failed_at: first.load_failed_at });
    expect(await again(false)).toEqual({ load_failures: 0, load_failed_at: null });
  });

  test('is fenced by worker and claim number', async () => {
    const id = await makeBatch(database.db, 1);
    const [worker, stranger] = [await makeWorker(database.db), await makeWorker(database.db)];
    const [row] = await claim(database.db, worker, id, 1);
    await release(stranger, [released(row!)]);
    await release(worker, [released({ ...row!, claimNo: 2 })]);
    expect(await states(id)).toEqual(['running']);
  });

  test('cancels in a cancelled batch, with the event, and ends the batch', async () => {
    const id = await makeBatch(database.db, 2);
    const worker = await makeWorker(database.db);
    const rows = await claim(database.db, worker, id, 2);
    await cancel(id);
    expect(await batch(id)).toMatchObject({ open_items: 2, status: 'cancelled', completed_at: null });
    expect(
      await release(
        worker,
        rows.map((row) => released(row, { attempts: 2 })),
      ),
    ).toEqual({ finished: [id] });
    expect(await states(id)).toEqual(['cancelled', 'cancelled']);
    expect(await events(id)).toMatchObject([
      { status: 0, attempts: 2, error_kind: 'cancelled', error_message: null },
      { error_kind: 'cancelled' },
    ]);
  });
});

describe('a rescue', () => {
  const rescue = (workers: string[], maxLosses = 3) => rescueItems(database.db, workers, 'test', maxLosses);

  test('takes items back twice, discards them with the third worker lost, and ends the batch', async () => {
    const id = await makeBatch(database.db, 1);
    for (const loss of [1, 2, 3]) {
      const worker = await makeWorker(database.db);
      expect(await claim(database.db, worker, id, 1, 1)).toHaveLength(1);
      expect(await rescue([worker])).toEqual({ rescued: 1, finished: loss === 3 ? [id] : [] });
      expect(await states(id)).toEqual([loss === 3 ? 'discarded' : 'available']);
      expect(await sql('select 1 from workers where id = $1', [worker])).toEqual([]);
    }
    expect(await sql('select error, losses from batch_items where batch_id = $1', [id])).toEqual([
      { error: 'batch item: interrupted: 3 workers lost', losses: 3 },
    ]);
    expect(await events(id)).toMatchObject([
      { status: 0, error_kind: 'worker_lost', error_message: 'interrupted: 3 workers lost' },
    ]);
  });

  test('discards at the first loss when asked never to call twice', async () => {
    const id = await makeBatch(database.db, 2);
    const worker = await makeWorker(database.db);
    await claim(database.db, worker, id, 1);
    await rescue([worker], 1);
    expect(await states(id)).toEqual(['discarded', 'available']);
    const [item] = await sql('select error from batch_items where batch_id = $1 and idx = 0', [id]);
    expect(item!.error).toMatch(/^batch item: interrupted: 1 workers? lost$/);
  });

  test('cancels in a cancelled batch whatever the losses', async () => {
    const id = await makeBatch(database.db, 1);
    const worker = await makeWorker(database.db);
    await claim(database.db, worker, id, 1);
    await cancel(id);
    expect(await rescue([worker], 1)).toEqual({ rescued: 1, finished: [id] });
    expect(await states(id)).toEqual(['cancelled']);
    expect(await events(id)).toMatchObject([{ error_kind: 'cancelled', error_message: null }]);
  });

  test('leaves the items of other workers and final ones alone', async () => {
    const id = await makeBatch(database.db, 3);
    const [lost, alive] = [await makeWorker(database.db), await makeWorker(database.db)];
    const [first] = await claim(database.db, lost, id, 1);
    await claim(database.db, alive, id, 1);
    await commit(lost, [success(first!)]);
    expect(await rescue([lost])).toEqual({ rescued: 0, finished: [] });
    expect(await states(id)).toEqual(['completed', 'running', 'available']);
  });

  test('case 16: that waits for the commit of the very item leaves it as it is', async () => {
    const id = await makeBatch(database.db, 2);
    const worker = await makeWorker(database.db);
    const [row] = await claim(database.db, worker, id, 1);
    let rescuing: ReturnType<typeof rescue> | undefined;
    await database.db.transaction(async (tx) => {
      await commit(worker, [success(row!)], tx);
      rescuing = rescue([worker]);
      await lockWait();
    });
    expect(await rescuing).toEqual({ rescued: 0, finished: [] });
    expect(await states(id)).toEqual(['completed', 'available']);
    expect(await events(id)).toMatchObject([{ status: 200 }]);
    expect(await batch(id)).toMatchObject({ open_items: 1 });
  });

  test('nobody is silent to a Postgres that started less than 30 s ago, nor is a worker to itself', async () => {
    const old = await makeWorker(database.db);
    await sql(`update workers set beat_at = clock_timestamp() - interval '1 hour' where id = $1`, [old]);
    const [{ young }] = (await sql(
      `select pg_postmaster_start_time() > clock_timestamp() - interval '30 seconds' as young`,
    )) as [{ young: boolean }];
    const silent = await database.db.transaction((tx) => lockSilentWorkers(tx, uuidv7(), 30));
    if (young) expect(silent).toEqual([]);
    else expect(silent).toContain(old);
    expect(await database.db.transaction((tx) => lockSilentWorkers(tx, old, 30))).not.toContain(old);
  });

  test('a former worker is one of the same instance only', async () => {
    const [mine, former] = [await makeWorker(database.db, 'inst-a'), await makeWorker(database.db, 'inst-a')];
    await makeWorker(database.db, 'inst-b');
    expect(await database.db.transaction((tx) => lockFormerWorkers(tx, 'inst-a', mine))).toEqual([former]);
  });
});

describe('a cancel', () => {
  test('50,000 pending items end in one statement, each with its event', async () => {
    const id = await makeBatch(database.db, 50_000);
    expect(await cancel(id)).toBe(true);
    expect(await sql('select state, count(*) from batch_items where batch_id = $1 group by 1', [id])).toEqual([
      { state: 'cancelled', count: 50_000 },
    ]);
    expect(await sql('select count(*) from usage_events where batch_id = $1', [id])).toEqual([{ count: 50_000 }]);
    expect((await batch(id)).completed_at).toBeInstanceOf(Date);
  });

  test('case 22: is idempotent, and leaves a finished batch’s items and its completion as they are', async () => {
    const id = await makeBatch(database.db, 2);
    const worker = await makeWorker(database.db);
    await commit(
      worker,
      (await claim(database.db, worker, id, 2)).map((row) => success(row)),
    );
    const { completed_at } = await batch(id);
    expect([await cancel(id), await cancel(id)]).toEqual([true, true]);
    expect(await batch(id)).toMatchObject({ status: 'cancelled', completed_at });
    expect(await states(id)).toEqual(['completed', 'completed']);
    expect(await events(id)).toHaveLength(2);
  });

  test('tells a batch of another owner, or of another surface, from none at all by nothing', async () => {
    const id = await makeBatch(database.db, 1);
    expect([await cancel(id, 'bob'), await cancel(id, 'ann', 'openai')]).toEqual([false, false]);
    expect(await states(id)).toEqual(['available']);
  });

  test('case 23: twice at once is once', async () => {
    const id = await makeBatch(database.db, 500);
    expect(await Promise.all([cancel(id), cancel(id), cancel(id)])).toEqual([true, true, true]);
    expect(await events(id)).toHaveLength(500);
    expect(await batch(id)).toMatchObject({ open_items: 0 });
  });

  test('meets the items that a release or a rescue gives back at that very moment', async () => {
    for (const way of ['release', 'rescue'] as const) {
      const id = await makeBatch(database.db, 2);
      const worker = await makeWorker(database.db);
      const rows = await claim(database.db, worker, id, 2);
      let cancelling: Promise<boolean> | undefined;
      await database.db.transaction(async (tx) => {
        if (way === 'release')
          await release(
            worker,
            rows.map((row) => released(row)),
            tx,
          );
        else await rescueItems(tx, [worker], 'test', 3);
        cancelling = cancel(id);
        await lockWait();
      });
      await cancelling;
      expect([way, await states(id)]).toEqual([way, ['cancelled', 'cancelled']]);
      expect((await batch(id)).completed_at).toBeInstanceOf(Date);
    }
  });

  test('beside claims and commits, at any moment, every item ends once and the batch ends', async () => {
    for (let round = 0; round < 10; round++) {
      const id = await makeBatch(database.db, 60);
      const worker = await makeWorker(database.db);
      const work = async () => {
        for (;;) {
          const rows = await claim(database.db, worker, id, 7, 7);
          if (rows.length === 0) return;
          const [back, ...rest] = rows;
          await commit(
            worker,
            rest.map((row) => success(row)),
          );
          await release(worker, [released(back!)]);
        }
      };
      const later = async () => {
        for (let i = 0; i < round; i++) await sql('select 1');
        await cancel(id);
      };
      await Promise.all([work(), work(), later()]);
      expect(await batch(id)).toMatchObject({ status: 'cancelled', open_items: 0 });
      expect(await events(id)).toHaveLength(60);
      for (const state of await states(id)) expect(['completed', 'cancelled']).toContain(state);
    }
  });
});

describe('the end of a completion window', () => {
  test('discards what has not started, leaves what runs, and ends the batch', async () => {
    const id = await makeBatch(database.db, 3, { completionWindowSeconds: 3600 });
    const later = await makeBatch(database.db, 1, { completionWindowSeconds: 3600 });
    const worker = await makeWorker(database.db);
    const [row, back] = await claim(database.db, worker, id, 2);
    await release(worker, [released(back!, { attempts: 2, delayMs: 60_000 })]);
    await sql(`update batches set expires_at = clock_timestamp() - interval '1 ms' where id = $1`, [id]);
    expect(await expireItems(database.db, 'test')).toEqual([]);
    expect(await states(id)).toEqual(['running', 'discarded', 'discarded']);
    expect(await states(later)).toEqual(['available']);
    expect(await sql('select distinct error from batch_items where batch_id = $1 and idx > 0', [id])).toEqual([
      { error: 'batch item: expired' },
    ]);
    expect(await events(id)).toMatchObject([
      { batch_idx: 1, attempts: 2, error_kind: 'timeout', error_message: 'expired' },
      { batch_idx: 2, attempts: 0 },
    ]);
    expect(await commit(worker, [success(row!)])).toEqual({ committed: 1, finished: [id] });
  });
});
