import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { type Clock, systemClock, uuidv7Time } from '../../../lib/base/clock.ts';
import type { Database, Db } from '../../../lib/db/database.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import type { UsageFacts } from '../../../lib/model/usage-event.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import type { PayloadStore } from '../../../lib/payloads/payload-store.ts';
import { createGroupCommit, type GroupCommitDeps } from '../../../lib/worker/commit.ts';
import type { ItemOutcome } from '../../../lib/worker/commit-group.ts';
import { NO_ROUTE } from '../../../lib/worker/item/outcome.ts';
import { beginTenure } from '../../../lib/worker/lease/tenure.ts';
import { PERIODS } from '../../../lib/worker/periods.ts';
import { claim, makeBatch, makeWorker, success } from '../../support/batches.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { strictLog } from '../../support/strict-log.ts';

let database: TestDatabase;
let root: string;
let store: PayloadStore;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'relay-groups-'));
  store = createFileStore(root);
});
afterEach(() => rm(root, { recursive: true, force: true }));

const sql = (text: string, values?: unknown[]) => database.sql(text, values);
const items = (id: string) => sql('select * from batch_items where batch_id = $1 order by idx', [id]);
const events = (id: string) => sql('select * from usage_events where batch_id = $1 order by batch_idx', [id]);
const segments = async () =>
  (await readdir(join(root, 'segment'), { recursive: true, withFileTypes: true })).filter((one) => one.isFile());

/** A group commit of a worker that has claimed the first `n` items of a new batch, and what it has told so far. */
async function start(n: number, change: Partial<GroupCommitDeps> & { total?: number } = {}) {
  const id = await makeBatch(database.db, change.total ?? n);
  const worker = await makeWorker(database.db);
  const rows = await claim(database.db, worker, id, n);
  const told = { committed: 0, dropped: 0, finished: [] as string[], blocked: [] as boolean[] };
  const changes = new Set<() => void>();
  const note = () => {
    for (const look of changes) look();
  };
  const commits = createGroupCommit({
    db: database.db,
    store,
    clock: systemClock,
    log: strictLog(),
    instance: 'test',
    flushMs: 1,
    periods: PERIODS,
    onCommitted: (group, finished) => {
      told.committed += group.length;
      told.finished.push(...finished);
      note();
    },
    onDropped: (group) => {
      told.dropped += group.length;
      note();
    },
    onBlocked: (state) => {
      told.blocked.push(state);
      note();
    },
    observe: () => {},
    ...change,
  });
  let { tenure, end } = beginTenure(worker);
  const context = { id } as BatchContext;
  const add = (i: number, usage: Partial<UsageFacts> = {}, response: string | null = `{"n":${i}}`) => {
    const row = rows[i]!;
    const item: ClaimedItem = { ...row, batch: context };
    const final: ItemOutcome = {
      item,
      outcome: {
        kind: 'final',
        state: response === null ? 'discarded' : 'completed',
        error: response === null ? 'batch item: x' : null,
        response: response === null ? null : Buffer.from(response),
        usage: { ...success(row).usage, route: NO_ROUTE, ...usage },
      },
    };
    commits.add(tenure, final);
  };
  /** Resolves when the reported state fits. */
  const until = (fits: () => boolean) =>
    new Promise<void>((resolve) => {
      const look = () => {
        if (!fits()) return;
        changes.delete(look);
        resolve();
      };
      changes.add(look);
      look();
    });
  /** Ends the tenure; what is added from now on is of a new one, under another worker id. */
  const loseLease = () => {
    end();
    return async () => {
      const next = await makeWorker(database.db);
      await sql('update batch_items set worker_id = $2 where batch_id = $1', [id, next]);
      ({ tenure, end } = beginTenure(next));
    };
  };
  return { id, worker, commits, add, told, until, loseLease };
}

test('outcomes of one window stand in one segment, each span its own bytes', async () => {
  const { id, commits, add, told } = await start(5);
  for (const i of [4, 0, 2, 1]) add(i);
  add(3, { status: 400, errorKind: 'upstream_error', errorMessage: 'x' }, null);
  expect(commits.size()).toBe(5);
  await commits.flush();
  expect(told).toEqual({ committed: 5, dropped: 0, finished: [id], blocked: [] });
  expect(await segments()).toHaveLength(1);
  for (const row of await items(id)) {
    if (row.idx === 3) {
      expect(row).toMatchObject({ state: 'discarded', error: 'batch item: x', segment_id: null });
      continue;
    }
    const ref = { kind: 'segment', id: String(row.segment_id) } as const;
    const span = await store.read(ref, Number(row.output_offset), Number(row.output_length));
    expect(span.toString()).toBe(`{"n":${row.idx}}`);
  }
  expect(await events(id)).toHaveLength(5);
  await commits.flush();
});

test('a group without a response writes no object', async () => {
  const { id, commits, add } = await start(2);
  add(0, {}, null);
  add(1, {}, null);
  await commits.flush();
  await expect(segments()).rejects.toMatchObject({ code: 'ENOENT' });
  expect(await events(id)).toHaveLength(2);
});

test('case 34: rows that Postgres refuses are discarded as internal, one by one; all others are recorded', async () => {
  const { id, commits, add, told } = await start(20);
  const bad: Record<number, Partial<UsageFacts>> = {
    3: { errorMessage: 'a\u0000b' },
    11: { status: 1_000_000 },
    12: { tokens: { input: 1e300 } },
    19: { route: { ...NO_ROUTE, requestedModel: 'a\u0000b' } },
  };
  for (let i = 0; i < 20; i++) add(i, bad[i]);
  await commits.flush();
  expect(told).toMatchObject({ committed: 20, finished: [id], blocked: [] });
  for (const row of await items(id)) {
    const idx = Number(row.idx);
    if (idx in bad) {
      expect(row).toMatchObject({ state: 'discarded', error: 'batch item: internal', segment_id: null });
    } else expect(row).toMatchObject({ state: 'completed', error: null });
  }
  for (const event of await events(id)) {
    expect(event.error_kind).toBe(Number(event.batch_idx) in bad ? 'internal' : null);
    if (event.error_kind) expect(event).toMatchObject({ status: 0, attempts: 0, tokens_input: null, cost_nanos: null });
  }
});

test('a store that takes no writes is waited for; nothing is claimed meanwhile and nothing is lost', async () => {
  const { id, commits, add, told, until } = await start(3);
  await writeFile(join(root, 'segment'), '');
  for (let i = 0; i < 3; i++) add(i);
  await until(() => told.blocked.length > 0);
  expect([told.blocked[0], told.committed, commits.size()]).toEqual([true, 0, 3]);
  expect((await items(id)).map(({ state }) => state)).toEqual(['running', 'running', 'running']);
  await rm(join(root, 'segment'));
  await commits.flush();
  expect(told).toMatchObject({ committed: 3, finished: [id] });
  expect(told.blocked.at(-1)).toBe(false);
});

/** The database with statements that fail: before they reach Postgres, or after they were done. */
function faulty(fail: (name: string) => 'before' | 'after' | null): Database {
  const run: Db['query'] = async (statement) => {
    const when = fail(statement.name);
    const lost = new Error('Connection terminated unexpectedly');
    if (when === 'before') throw lost;
    const result = await database.db.query(statement);
    if (when === 'after') throw lost;
    return result as never;
  };
  return { ...database.db, query: run };
}

test('case 33: a commit whose answer was lost is done once, and its segment stays', async () => {
  let lost = 2;
  const db = faulty((name) => (name === 'commit_outcomes' && lost-- > 0 ? 'after' : null));
  const { id, commits, add, told } = await start(4, { db, total: 5 });
  for (let i = 0; i < 4; i++) add(i);
  await commits.flush();
  expect(told).toMatchObject({ committed: 4, finished: [] });
  expect(told.blocked).toEqual([true, false]);
  expect(await events(id)).toHaveLength(4);
  const [segment] = new Set((await items(id)).filter((row) => row.state === 'completed').map((row) => row.segment_id));
  expect(await sql('select segment_id from segment_refs where batch_id = $1', [id])).toEqual([{ segment_id: segment }]);
  expect((await segments()).map(({ name }) => name)).toEqual([segment]);
});

test('a database that is away is waited for', async () => {
  let away = 3;
  const { id, commits, add, told } = await start(2, { db: faulty(() => (away-- > 0 ? 'before' : null)) });
  add(0);
  add(1);
  await commits.flush();
  expect(told).toMatchObject({ committed: 2, finished: [id] });
});

test('a lease that is lost while it waits drops the group, and claims are no longer held up', async () => {
  let away = true;
  const db = faulty(() => (away ? 'before' : null));
  const { id, commits, add, told, until, loseLease } = await start(2, { db });
  add(0);
  await until(() => told.blocked.length > 0);
  add(1, {}, null);
  const goOn = loseLease();
  expect([commits.size(), commits.full()]).toEqual([0, false]);
  await commits.flush();
  away = false;
  await until(() => told.dropped === 2);
  expect(told.blocked.at(-1)).toBe(false);
  expect(told.committed).toBe(0);
  expect((await items(id)).map(({ state }) => state)).toEqual(['running', 'running']);
  // An outcome that comes after the end is dropped as well.
  add(0);
  expect([told.dropped, commits.size()]).toEqual([3, 0]);
  // Under the new id it continues.
  await goOn();
  add(0);
  add(1);
  await commits.flush();
  expect(told).toMatchObject({ committed: 2, finished: [id] });
});

test('a segment that got old while it waited is written again before it is committed', async () => {
  let skew = 0;
  const clock: Clock = { ...systemClock, now: () => Date.now() + skew };
  let failures = 1;
  const db = faulty((name) => {
    if (name !== 'commit_outcomes' || failures-- <= 0) return null;
    skew = 2 * 3_600_000;
    return 'before';
  });
  const { id, commits, add } = await start(1, { db, clock });
  add(0);
  await commits.flush();
  const [row] = await items(id);
  expect(await segments()).toHaveLength(2);
  expect(uuidv7Time(String(row!.segment_id))).toBeGreaterThan(Date.now() + 3_600_000);
});

test('is full when answers come faster than they can be recorded, and groups hold at most 256', async () => {
  const groups: number[] = [];
  const { id, commits, add, told } = await start(2100, { observe: ({ items: n }) => groups.push(n) });
  for (let i = 0; i < 2047; i++) add(i);
  expect(commits.full()).toBe(false);
  add(2047);
  expect(commits.full()).toBe(true);
  for (let i = 2048; i < 2100; i++) add(i);
  await commits.flush();
  expect([commits.full(), commits.size(), told.committed]).toEqual([false, 0, 2100]);
  expect(Math.max(...groups)).toBe(256);
  expect(told.finished).toEqual([id]);
});
