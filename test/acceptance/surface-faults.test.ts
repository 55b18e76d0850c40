import { rename } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Database, Db } from '../../lib/db/database.ts';
import { isConnectionError } from '../../lib/db/errors.ts';
import { ageLeases } from '../support/aging.ts';
import { sql } from '../support/sql.ts';
import { eventually } from './support/calls.ts';
import { anthropicEnd, openaiEnd, uuidOf } from './support/clients.ts';
import { startPostgres } from './support/postgres-server.ts';
import { openScene } from './support/scene.ts';
import {
  anthropicAt,
  batchOf,
  expectOutputOnce,
  expectResultsOnce,
  isWriting,
  messageBatch,
  objectsOf,
  openaiAt,
  openaiBatch,
  requestsOf,
  strikeAtWrite,
  uploadOf,
} from './support/surfaces.ts';

/** A file of 40 MB, which takes long to read, of few requests, which take short to run. */
const large = (prefix: string) => requestsOf(4000, prefix, 5000);
const FAST = { RELAY_BATCH_CONCURRENCY: '64' };

const rowOf = async (db: Database, id: string) => {
  const text = `
    select in_progress_at is not null as runs, lease_until is not null as leased, ended_at is not null as ended,
      (select count(*)::int from batches b where b.id = o.id) as batches,
      (select count(*)::int from batch_items i where i.batch_id = o.id) as items
    from openai_batches o where id = $1::uuid`;
  return (await sql(db, text, [uuidOf(id)]))[0]!;
};

/** Makes a batch and keeps its validation, which has read all, in the middle of its transaction; then strikes. */
async function whileItRecords(db: Database, create: () => Promise<string>, strike: () => Promise<void>) {
  const started = 'select from pg_stat_activity where datname = current_database() and wait_event_type = $1::text';
  let id = '';
  const lock = async (tx: Db) => {
    await tx.query({ name: 'test_lock', text: 'lock table batch_items in share mode', values: [] });
    id = await create();
    await eventually(
      () => sql(db, started, ['Lock']),
      (waiting) => waiting.length > 0,
    );
    await strike();
  };
  await db.transaction(lock).catch((error) => {
    if (!isConnectionError(error)) throw error; // the strike may be at Postgres itself
  });
  return id;
}

describe.concurrent('a server that is killed', { timeout: 300_000 }, () => {
  test.for(['reads', 'records'] as const)(
    'while it %s the lines of a large file starts over',
    async (phase, { onTestFinished }) => {
      const scene = await openScene(onTestFinished);
      const { dsn, db } = await scene.database();
      const upstream = await scene.countingUpstream();
      const first = await scene.start({ dsn, upstream, env: FAST });
      const requests = large(phase);
      const create = () => openaiBatch(first, requests);
      let id = '';
      if (phase === 'reads') {
        const struck = await strikeAtWrite(join(scene.dir, 'payloads'), 'custom_ids', first.pid, 'SIGKILL');
        id = await create();
        await struck();
        await first.exited;
      } else id = await whileItRecords(db, create, () => first.kill());
      // Nothing of it is visible.
      expect(await rowOf(db, id)).toEqual({ runs: false, leased: true, ended: false, batches: 0, items: 0 });
      await ageLeases(db);
      const second = await scene.start({ dsn, upstream, env: FAST });
      await expectOutputOnce(second, db, id, requests);
      const { users } = await upstream.stats();
      expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
    },
  );

  test('in mid-run does no finished request again, on either surface', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const first = await scene.start({ dsn, upstream });
    const requests = { openai: requestsOf(1000, 'chat'), anthropic: requestsOf(1000, 'message') };
    const ids = [await openaiBatch(first, requests.openai), await messageBatch(first, requests.anthropic)] as const;
    const completed = async () => {
      const text = `select b.surface, i.idx from batch_items i join batches b on b.id = i.batch_id where i.state = 'completed'`;
      return sql<{ surface: string; idx: number }>(db, text);
    };
    await eventually(completed, (done) => new Set(done.map(({ surface }) => surface)).size === 2 && done.length > 300);
    await first.kill();
    const done = (await completed()).map(({ surface, idx }) => `${surface === 'openai' ? 'chat' : 'message'}-${idx}`);
    expect(done.length).toBeLessThan(2000);
    const second = await scene.start({ dsn, upstream });
    await expectOutputOnce(second, db, ids[0], requests.openai);
    await expectResultsOnce(second, db, ids[1], requests.anthropic);
    const { users } = await upstream.stats();
    expect(done.filter((user) => users[user] !== 1)).toEqual([]);
  });

  test.for(['openai', 'anthropic'] as const)(
    'while it writes the results of %s writes them anew',
    async (surface, { onTestFinished }) => {
      const scene = await openScene(onTestFinished);
      const { dsn, db } = await scene.database();
      const upstream = await scene.countingUpstream({ answerBytes: 100_000 });
      const first = await scene.start({ dsn, upstream, env: FAST });
      const requests = requestsOf(1000, 'w');
      const payloads = join(scene.dir, 'payloads');
      const kind = surface === 'openai' ? 'output' : 'result';
      const struck = await strikeAtWrite(payloads, kind, first.pid, 'SIGKILL');
      const id = await (surface === 'openai' ? openaiBatch : messageBatch)(first, requests);
      await struck();
      await first.exited;
      const unwritten = 'select from batches where completed_at is not null and results_id is null';
      expect((await sql(db, unwritten)).length).toBe(1);
      expect(await sql(db, "select from files where purpose = 'batch_output'")).toEqual([]);
      await ageLeases(db);
      const second = await scene.start({ dsn, upstream, env: FAST });
      await (surface === 'openai' ? expectOutputOnce : expectResultsOnce)(second, db, id, requests);
      expect(await objectsOf(payloads, kind)).toBe(1);
    },
  );
});

describe.concurrent('two replicas', { timeout: 300_000 }, () => {
  test('run what the other one made, and each answers for all of it', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, home: 'a' }),
      scene.start({ dsn, upstream, home: 'b' }),
    ]);
    const requests = { openai: requestsOf(1000, 'chat'), anthropic: requestsOf(1000, 'message') };
    const id = await openaiBatch(first, requests.openai);
    await openaiEnd(openaiAt(second), id);
    await expectOutputOnce(second, db, id, requests.openai);
    const messages = await messageBatch(second, requests.anthropic);
    await anthropicEnd(anthropicAt(first), messages);
    await expectResultsOnce(first, db, messages, requests.anthropic);
    const instances = 'select batch_id from usage_events group by batch_id having count(distinct instance) = 2';
    expect((await sql(db, instances)).length).toBe(2);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
  });

  test('validate, run and finish what the other one made before it was killed', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, env: FAST, home: 'a' }),
      scene.start({ dsn, upstream, env: FAST, home: 'b' }),
    ]);
    const requests = large('heir');
    const struck = await strikeAtWrite(join(scene.dir, 'payloads'), 'custom_ids', first!.pid, 'SIGKILL');
    const id = await openaiBatch(first!, requests);
    await struck();
    expect((await rowOf(db, id)).runs).toBe(false);
    await ageLeases(db);
    await expectOutputOnce(second!, db, id, requests);
  });

  test('start a batch once when one froze in its validation and wakes up later', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const frozen = await scene.start({ dsn, upstream, env: FAST, home: 'a' });
    const requests = large('frozen');
    const payloads = join(scene.dir, 'payloads');
    const struck = await strikeAtWrite(payloads, 'custom_ids', frozen.pid, 'SIGSTOP');
    const id = await openaiBatch(frozen, requests);
    await struck();
    expect(await rowOf(db, id)).toMatchObject({ runs: false, leased: true });
    await ageLeases(db);
    const other = await scene.start({ dsn, upstream, env: FAST, home: 'b' });
    await eventually(
      () => rowOf(db, id),
      ({ runs }) => runs === true,
    );
    frozen.signal('SIGCONT');
    await expectOutputOnce(other, db, id, requests);
    // It finds out by itself, and takes away what it wrote.
    await eventually(
      () => isWriting(payloads, 'custom_ids'),
      (writes) => !writes,
    );
    await eventually(
      () => objectsOf(payloads, 'custom_ids'),
      (count) => count === 1,
    );
    expect(frozen.running()).toBe(true);
    const { users } = await upstream.stats();
    expect(Object.keys(users).length).toBe(requests.length);
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
  });

  test('leave one set of result files when both write them', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ answerBytes: 100_000 });
    const frozen = await scene.start({ dsn, upstream, env: FAST, home: 'a' });
    const requests = requestsOf(1000, 'both');
    const payloads = join(scene.dir, 'payloads');
    const struck = await strikeAtWrite(payloads, 'output', frozen.pid, 'SIGSTOP');
    const id = await openaiBatch(frozen, requests);
    await struck();
    await ageLeases(db);
    const other = await scene.start({ dsn, upstream, env: FAST, home: 'b' });
    await expectOutputOnce(other, db, id, requests);
    frozen.signal('SIGCONT');
    await eventually(
      () => isWriting(payloads, 'output'),
      (writes) => !writes,
    );
    await eventually(
      () => objectsOf(payloads, 'output'),
      (count) => count === 1,
    );
    await expectOutputOnce(frozen, db, id, requests);
    expect(await objectsOf(payloads, 'output')).toBe(1);
  });
});

describe.concurrent('what a server loses', { timeout: 300_000 }, () => {
  test('of Postgres while it validates a large file costs nothing', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const postgres = await startPostgres();
    scene.defer(() => postgres.close());
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn: postgres.dsn, upstream, env: FAST });
    const requests = large('away');
    const create = () => openaiBatch(server, requests);
    const id = await whileItRecords(postgres.db, create, () => postgres.stop('immediate'));
    await postgres.start();
    await server.ready();
    expect(await rowOf(postgres.db, id)).toMatchObject({ runs: false, leased: true, ended: false, items: 0 });
    await ageLeases(postgres.db);
    await expectOutputOnce(server, postgres.db, id, requests);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
    expect(server.errors()).not.toMatch(/unhandled|uncaught|\n {4}at /i);
    expect(server.log.filter(({ level }) => level === 'error' || level === 'fatal')).toEqual([]);
  });

  test('in its payload directory fails no batch that waits for its validation', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn, upstream, speed: 5 });
    const requests = requestsOf(20, 'gone');
    const payloads = join(scene.dir, 'payloads');
    const file = await uploadOf(server, requests);
    await rename(payloads, `${payloads}-away`);
    const id = await batchOf(server, file);
    await server.logged('batch not validated, it is tried again');
    const tries = () => server.log.filter(({ msg }) => msg === 'batch not validated, it is tried again').length;
    // For longer than a file that is lost is waited for, and due at once.
    await eventually(
      async () => {
        const old = `update openai_batches set created_at = created_at - interval '1 hour', lease_until = null
        where id = $1::uuid and lease_until < clock_timestamp() + interval '15 s'`;
        await sql(db, old, [uuidOf(id)]);
        return tries();
      },
      (count) => count >= 2,
    );
    expect(await rowOf(db, id)).toMatchObject({ runs: false, ended: false });
    await rename(`${payloads}-away`, payloads);
    await expectOutputOnce(server, db, id, requests);
  });
});
