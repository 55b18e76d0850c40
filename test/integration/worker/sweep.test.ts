import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Clock, systemClock, uuidv7 } from '../../../lib/base/clock.ts';
import { createLog } from '../../../lib/base/log.ts';
import { deleteBatch, findBatch } from '../../../lib/batch/batches.sql.ts';
import { listUncompacted, setResults } from '../../../lib/batch/results/compact.sql.ts';
import { compactBatch, createCompactor } from '../../../lib/batch/results/compact.ts';
import { readIndexRecord } from '../../../lib/batch/results/result-index.ts';
import { renderResults } from '../../../lib/batch/results/results.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import type { PayloadKind, PayloadRef, PayloadStore } from '../../../lib/payloads/payload-store.ts';
import type { Heartbeat } from '../../../lib/worker/lease/lease.sql.ts';
import { takeBackFormer } from '../../../lib/worker/lease/rescue.ts';
import { deleteOrphans } from '../../../lib/worker/sweep/orphans.ts';
import { createSweeper, type SweepDeps } from '../../../lib/worker/sweep/sweep.ts';
import { claim, makeBatch, makeWorker } from '../../support/batches.ts';
import { finish } from '../../support/outcomes.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
let root: string;
let payloads: PayloadStore;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'relay-sweep-'));
  payloads = createFileStore(root);
  for (const table of ['batch_cursors', 'batch_items', 'batches', 'workers', 'segment_refs', 'idempotency_keys']) {
    await sql(`delete from ${table}`);
  }
});
afterEach(() => rm(root, { recursive: true, force: true }));

const log = createLog('silent');
const HOUR = 3_600_000;
const sql = (text: string, values?: unknown[]) => database.sql(text, values);
const key = (id: string) => ({ id, owner: 'ann', surface: 'relay' });
const compactDeps = (clock: Clock = systemClock) => ({ db: database.db, payloads, clock, log });

/** A finished batch of three items, one of each final state. */
async function finished(): Promise<{ id: string; segment: string }> {
  const id = await makeBatch(database.db, 3);
  const segment = await finish({ database, payloads }, id, [
    { idx: 0, state: 'completed', body: '{"choices":[],"big":9007199254740993,"s":"é\\u0000"}' },
    { idx: 1, state: 'discarded', error: 'batch item: upstream status 400' },
    { idx: 2, state: 'cancelled' },
  ]);
  await sql('insert into segment_refs values ($1, $2)', [segment, id]);
  await sql('delete from batch_cursors where batch_id = $1', [id]);
  return { id, segment };
}

async function results(id: string): Promise<Buffer> {
  const batch = (await findBatch(database.db, key(id)))!;
  const chunks: Buffer[] = [];
  const options = { after: -1, state: null, page: null };
  for await (const chunk of renderResults({ db: database.db, payloads }, key(id), batch, options)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

describe('compaction', () => {
  test('writes what the results call gives, byte for byte, with an index that finds each element', async () => {
    const { id } = await finished();
    const before = await results(id);
    expect(await compactBatch(compactDeps(), id)).toBe(true);
    const [row] = await sql('select results_id from batches where id = $1', [id]);
    const document: PayloadRef = { kind: 'result', id: String(row!.results_id) };
    const bytes = await payloads.read(document, 0, await payloads.size(document));
    expect(bytes.equals(before)).toBe(true);
    expect((await results(id)).equals(before)).toBe(true);
    const index = await payloads.read({ ...document, kind: 'index' }, 0, 48);
    const elements = [0, 1, 2].map((i) => {
      const { offset, length, state } = readIndexRecord(index, i);
      return [state, JSON.parse(bytes.toString('utf8', offset, offset + length)).idx];
    });
    expect(elements).toEqual([
      ['completed', 0],
      ['discarded', 1],
      ['cancelled', 2],
    ]);
    expect(await sql('select 1 from segment_refs')).toEqual([]);
    expect(await compactBatch(compactDeps(), id)).toBe(false);
  });

  test('leaves a batch alone that is not finished, or not there', async () => {
    const id = await makeBatch(database.db, 1);
    expect(await compactBatch(compactDeps(), id)).toBe(false);
    expect(await compactBatch(compactDeps(), uuidv7())).toBe(false);
  });

  test('of two at once one wins, and only a finished batch is switched', async () => {
    const { id } = await finished();
    const open = await makeBatch(database.db, 1);
    const [first, second] = [uuidv7(), uuidv7()];
    expect(await setResults(database.db, open, first)).toBe(false);
    expect(await setResults(database.db, id, first)).toBe(true);
    expect(await setResults(database.db, id, second)).toBe(false);
    expect(await sql('select results_id from batches where id = $1', [id])).toEqual([{ results_id: first }]);
  });

  test('is done by one replica at a time, and by another when that one is gone', async () => {
    const { id } = await finished();
    await sql(`update batches set completed_at = completed_at - interval '6 seconds' where id = $1`, [id]);
    const seen: unknown[] = [];
    const watched: PayloadStore = {
      ...payloads,
      async writeStream(ref, source) {
        seen.push(await compactBatch(compactDeps(), id), await listUncompacted(database.db, 10));
        await sql(`update batches set compacting_until = clock_timestamp() where id = $1`, [id]);
        seen.push(await listUncompacted(database.db, 10), await compactBatch(compactDeps(), id));
        return payloads.writeStream(ref, source);
      },
    };
    expect(await compactBatch({ ...compactDeps(), payloads: watched }, id)).toBe(false);
    expect(seen).toEqual([false, [], [id], true]);
  });

  test('that failed may be tried by anybody at once', async () => {
    const { id } = await finished();
    await sql(`update batches set completed_at = completed_at - interval '6 seconds' where id = $1`, [id]);
    const full: PayloadStore = { ...payloads, writeStream: () => Promise.reject(new Error('no room')) };
    await expect(compactBatch({ ...compactDeps(), payloads: full }, id)).rejects.toThrow('no room');
    expect(await listUncompacted(database.db, 10)).toEqual([id]);
    expect(await compactBatch(compactDeps(), id)).toBe(true);
  });

  test('is beaten by a delete, and leaves no object behind', async () => {
    const { id } = await finished();
    const slow: PayloadStore = {
      ...payloads,
      async writeStream(ref, source) {
        const length = await payloads.writeStream(ref, source);
        await deleteBatch(database.db, key(id));
        return length;
      },
    };
    expect(await compactBatch({ ...compactDeps(), payloads: slow }, id)).toBe(false);
    for (const kind of ['result', 'index']) {
      const left = await readdir(join(root, kind), { recursive: true, withFileTypes: true }).catch(() => []);
      expect(left.filter((one) => one.isFile())).toEqual([]);
    }
  });

  test('of an unreadable response fails, is not tried again at once, and is once the pause is over', async () => {
    const { id, segment } = await finished();
    let now = 0;
    let reads = 0;
    const counted: PayloadStore = {
      ...payloads,
      read(...args) {
        reads++;
        return payloads.read(...args);
      },
    };
    const clock: Clock = { ...systemClock, monotonic: () => now };
    const compactor = createCompactor({ ...compactDeps(clock), payloads: counted });
    const ref: PayloadRef = { kind: 'segment', id: segment };
    const bytes = await payloads.read(ref, 0, await payloads.size(ref));
    await payloads.delete([ref]);
    await compactor.compact([id, id]);
    const tried = reads;
    expect(tried).toBeGreaterThan(0);
    now = 9_999;
    await compactor.compact([id]);
    expect(reads).toBe(tried);
    expect(await sql('select 1 from batches where results_id is not null')).toEqual([]);
    await payloads.write(ref, [bytes]);
    now = 10_000;
    await compactor.compact([id]);
    expect(await sql('select 1 from batches where results_id is not null')).toHaveLength(1);
    await compactor.stop();
  });

  test('is due for batches that have been finished for a while and have no document', async () => {
    const { id } = await finished();
    await makeBatch(database.db, 1);
    expect(await listUncompacted(database.db, 10)).toEqual([]);
    await sql(`update batches set completed_at = completed_at - interval '6 seconds' where id = $1`, [id]);
    expect(await listUncompacted(database.db, 10)).toEqual([id]);
    expect(await listUncompacted(database.db, 10, [id])).toEqual([]);
    await compactBatch(compactDeps(), id);
    expect(await listUncompacted(database.db, 10)).toEqual([]);
  });
});

describe('the orphan sweep', () => {
  test('deletes only what is older than a day and unreferenced, of every kind', async () => {
    const now = Date.now();
    const make = async (kind: PayloadKind, age: number) => {
      const ref: PayloadRef = { kind, id: uuidv7(now - age) };
      await payloads.write(ref, [Buffer.from('x')]);
      return ref;
    };
    const kinds = ['input', 'segment', 'result', 'index'] as const;
    const orphans = await Promise.all(kinds.map((kind) => make(kind, 25 * HOUR)));
    const young = await Promise.all(kinds.map((kind) => make(kind, 23 * HOUR)));
    const [input, segment, result] = await Promise.all([
      make('input', 99 * HOUR),
      make('segment', 99 * HOUR),
      make('result', 99 * HOUR),
    ]);
    const index: PayloadRef = { kind: 'index', id: result.id };
    await payloads.write(index, [Buffer.from('x')]);
    const { id } = await finished();
    await sql('update batches set input_id = $2, results_id = $3 where id = $1', [id, input.id, result.id]);
    await sql('insert into segment_refs values ($1, $2)', [segment.id, id]);
    expect(await deleteOrphans(database.db, payloads, now)).toBe(4);
    for (const ref of [...young, input, segment, result, index]) expect(await payloads.size(ref)).toBe(1);
    for (const ref of orphans) await expect(payloads.size(ref)).rejects.toThrow('not found');
    // The next sweep deletes the objects that a delete leaves behind.
    await deleteBatch(database.db, key(id));
    expect(await deleteOrphans(database.db, payloads, now)).toBe(4);
  });

  test('looks at more objects than one page', async () => {
    const now = Date.now();
    const refs = Array.from({ length: 1001 }, (): PayloadRef => ({ kind: 'segment', id: uuidv7(now - 30 * HOUR) }));
    for (const ref of refs) await payloads.write(ref, []);
    await sql('insert into segment_refs values ($1, gen_random_uuid())', [refs[700]!.id]);
    expect(await deleteOrphans(database.db, payloads, now)).toBe(1000);
    expect(await payloads.size(refs[700]!)).toBe(0);
  });
});

describe('the sweep', () => {
  const QUIET: Heartbeat = {
    alive: true,
    catalogVersion: 0,
    nowMs: 0,
    cancelled: [],
    rescueDue: false,
    expiryDue: false,
    compactionDue: false,
    validationDue: false,
    workDue: false,
  };

  function sweeper(change: Partial<SweepDeps> = {}) {
    const told = { woken: 0, compacted: [] as string[], validated: 0, purged: 0 };
    const rescue = { db: database.db, log, instance: 'me', onWorkerLoss: 'rerun' as const, leaseSeconds: 30 };
    const made = createSweeper({
      db: database.db,
      store: payloads,
      clock: systemClock,
      log,
      rescue,
      retentionDays: 0,
      usageRetentionDays: 0,
      selfId: () => uuidv7(),
      mayRescue: () => true,
      compact: async (ids) => void told.compacted.push(...ids),
      paused: () => [],
      validate: async () => void told.validated++,
      wake: () => void told.woken++,
      purge: async () => void told.purged++,
      ...change,
    });
    return { ...made, told, rescue };
  }

  test('wakes for work, expires what is due, and asks for what is not compacted', async () => {
    const { onHeartbeat, stop, told } = sweeper();
    const late = await makeBatch(database.db, 2, { completionWindowSeconds: 60 });
    await sql(`update batches set expires_at = clock_timestamp() where id = $1`, [late]);
    const { id } = await finished();
    await sql(`update batches set completed_at = completed_at - interval '1 minute' where id = $1`, [id]);
    await onHeartbeat(QUIET);
    expect(told).toEqual({ woken: 0, compacted: [], validated: 0, purged: 0 });
    await onHeartbeat({ ...QUIET, workDue: true, expiryDue: true, compactionDue: true, validationDue: true });
    expect(told).toEqual({ woken: 1, compacted: [late, id], validated: 1, purged: 0 });
    expect(await sql('select distinct state, error from batch_items where batch_id = $1', [late])).toEqual([
      { state: 'discarded', error: 'batch item: expired' },
    ]);
    await stop();
  });

  test('keeps batches without a retention, and with one deletes finished ones that are older', async () => {
    const [old, fresh] = [await finished(), await finished()];
    const open = await makeBatch(database.db, 1);
    await sql(`update batches set created_at = created_at - interval '90 days'`);
    await sql(`update batches set completed_at = completed_at - interval '31 days' where id = $1`, [old.id]);
    await sql(`update batches set completed_at = completed_at - interval '29 days' where id = $1`, [fresh.id]);
    const keep = sweeper();
    expect(await keep.housekeep()).toBe(true);
    expect(await sql('select 1 from batches')).toHaveLength(3);
    const events = await sql('select count(*) from usage_events');
    const drop = sweeper({ retentionDays: 30 });
    await drop.housekeep();
    expect((await sql('select id from batches order by id')).map(({ id }) => id).sort()).toEqual(
      [fresh.id, open].sort(),
    );
    expect(await sql('select 1 from batch_items where batch_id = $1', [old.id])).toEqual([]);
    expect(await sql('select 1 from segment_refs where batch_id = $1', [old.id])).toEqual([]);
    expect(await sql('select count(*) from usage_events')).toEqual(events);
    await Promise.all([keep.stop(), drop.stop()]);
  });

  test('forgets idempotency keys after a day, and goes on when one of its steps fails', async () => {
    for (const age of ['23 hours', '25 hours']) {
      await sql(
        `insert into idempotency_keys (owner, surface, key, body_sha256, batch_id, created_at)
        values ('ann', 'relay', $1::text, '', gen_random_uuid(), clock_timestamp() - $1::text::interval)`,
        [age],
      );
    }
    const ref: PayloadRef = { kind: 'input', id: uuidv7(Date.now() - 30 * HOUR) };
    await payloads.write(ref, []);
    const { housekeep, stop } = sweeper({ purge: () => Promise.reject(new Error('no')) });
    expect(await housekeep()).toBe(false);
    expect(await sql('select key from idempotency_keys')).toEqual([{ key: '23 hours' }]);
    await expect(payloads.size(ref)).rejects.toThrow('not found');
    await stop();
  });

  test('a store that cannot be listed keeps nothing else from being done', async () => {
    await writeFile(join(root, 'input'), '');
    const { housekeep, stop, told } = sweeper();
    expect(await housekeep()).toBe(false);
    expect(told.purged).toBe(1);
    await stop();
  });

  test('rescues nobody while it was silent itself or has no lease', async () => {
    const lost = await makeWorker(database.db, 'other');
    await sql(`update workers set beat_at = clock_timestamp() - interval '1 hour'`);
    for (const change of [{ mayRescue: () => false }, { selfId: () => null }]) {
      const { onHeartbeat, stop } = sweeper(change);
      await onHeartbeat({ ...QUIET, rescueDue: true });
      expect(await sql('select id from workers')).toEqual([{ id: lost }]);
      await stop();
    }
  });

  test('an instance that starts again takes its own items back at once, and nobody else’s', async () => {
    const id = await makeBatch(database.db, 2);
    const [former, other] = [await makeWorker(database.db, 'me'), await makeWorker(database.db, 'other')];
    await claim(database.db, former, id, 1);
    await claim(database.db, other, id, 1);
    const { rescue, stop } = sweeper();
    const self = await makeWorker(database.db, 'me');
    expect(await takeBackFormer(rescue, self)).toEqual({ items: 1, finished: [] });
    expect(await sql('select idx, state from batch_items where batch_id = $1 order by idx', [id])).toEqual([
      { idx: 0, state: 'available' },
      { idx: 1, state: 'running' },
    ]);
    expect((await sql('select id from workers order by id')).map((row) => row.id)).toEqual([other, self]);
    expect(await takeBackFormer(rescue, self)).toEqual({ items: 0, finished: [] });
    await stop();
  });
});
