import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Clock, systemClock } from '../../../lib/base/clock.ts';
import { createLog } from '../../../lib/base/log.ts';
import type { Db } from '../../../lib/db/database.ts';
import type { Heartbeat } from '../../../lib/worker/lease/lease.sql.ts';
import { createLease, type Lease } from '../../../lib/worker/lease/lease.ts';
import { PERIODS } from '../../../lib/worker/periods.ts';
import { makeBatch } from '../../support/batches.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
const leases: Lease[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
afterEach(async () => {
  for (const lease of leases.splice(0)) await lease.stop(true);
});

const sql = (text: string, values?: unknown[]) => database.sql(text, values);
const workers = async () => (await sql('select id from workers order by id')).map(({ id }) => id);

/** A lease over a database that can be taken away and a clock that the test sets. */
function start(held: string[] = [], away = false, periods = PERIODS) {
  const world = { now: 0, away };
  const told: string[] = [];
  const beats: Heartbeat[] = [];
  const changes = new Set<() => void>();
  const tell = (what: string) => {
    told.push(what);
    for (const look of changes) look();
  };
  const db: Db = {
    query: (statement) => (world.away ? Promise.reject(new Error('away')) : database.db.query(statement)),
  };
  const clock: Clock = { ...systemClock, monotonic: () => world.now };
  const lease = createLease({
    db,
    clock,
    log: createLog('silent'),
    kind: { instance: 'test', slots: 8, invocation: false },
    periods,
    heldBatches: () => held,
    standing: () => ({ blocked: false, passedOver: [] }),
    onHeartbeat: (beat) => {
      beats.push(beat);
      tell('beat');
    },
    onSilent: () => tell('silent'),
    onTenure: ({ workerId, signal }) => {
      tell(`ready ${workerId}`);
      signal.addEventListener('abort', () => tell('lost'));
    },
  });
  leases.push(lease);
  lease.start();
  const until = (what: string) =>
    new Promise<void>((resolve) => {
      const look = () => {
        if (!told.includes(what)) return;
        changes.delete(look);
        resolve();
      };
      changes.add(look);
      look();
    });
  return { lease, world, told, beats, until };
}

test('stands from its first beat on, and tells the database’s time', async () => {
  const { lease, told, beats, until } = start();
  expect([lease.id(), lease.healthy(), lease.stands()]).toEqual([null, false, false]);
  expect(lease.tenure().signal.aborted).toBe(true);
  await until('beat');
  expect(told).toEqual([`ready ${lease.id()}`, 'beat']);
  expect(await workers()).toEqual([lease.id()]);
  expect([lease.healthy(), lease.stands(), lease.mayRescue()]).toEqual([true, true, true]);
  expect(Math.abs(lease.dbNow() - beats[0]!.nowMs)).toBeLessThan(60_000);
});

test('a database that is not there yet is waited for', async () => {
  const { lease, world, told } = start([], true);
  await lease.heartbeatNow();
  expect([lease.id(), lease.healthy(), told]).toEqual([null, false, []]);
  world.away = false;
  await lease.heartbeatNow();
  expect(told).toEqual([`ready ${lease.id()}`, 'beat']);
  expect(lease.healthy()).toBe(true);
});

test('brings back the cancelled ones of the batches asked about', async () => {
  const [cancelled, queued, other] = [
    await makeBatch(database.db, 1),
    await makeBatch(database.db, 1),
    await makeBatch(database.db, 1),
  ];
  await sql(`update batches set status = 'cancelled', cancelled_at = clock_timestamp() where id = any($1)`, [
    [cancelled, other],
  ]);
  const { beats, until } = start([cancelled, queued]);
  await until('beat');
  expect(beats[0]!.cancelled).toEqual([cancelled]);
  expect(beats[0]).toMatchObject({ alive: true, workDue: true, expiryDue: false, rescueDue: false });
  await sql('delete from batch_cursors');
  await sql('delete from batches');
});

test('of a batch whose window is closed says so while there is something to expire', async () => {
  const id = await makeBatch(database.db, 1, { completionWindowSeconds: 60 });
  await sql('update batches set expires_at = clock_timestamp() where id = $1', [id]);
  const { beats, until } = start();
  await until('beat');
  expect(beats[0]!.expiryDue).toBe(true);
  await sql('delete from batch_cursors');
  await sql('delete from batches');
});

test('a lease that was taken is given up for one under a new id, in the same beat', async () => {
  const { lease, told, until } = start();
  await until('beat');
  const ended = lease.tenure();
  const first = lease.id();
  await sql('delete from workers');
  await lease.heartbeatNow();
  expect(lease.id()).not.toBe(first);
  expect([ended.signal.aborted, lease.tenure().signal.aborted]).toEqual([true, false]);
  expect(lease.tenure().workerId).toBe(lease.id());
  expect(told.slice(2)).toEqual(['lost', `ready ${lease.id()}`, 'beat']);
  expect(await workers()).toEqual([lease.id()]);
});

test('without a beat it claims nothing after 20 s, runs nothing after 30 s, and says so once', async () => {
  const { lease, world, told, until } = start([], false, { ...PERIODS, tickMs: 10 });
  await until('beat');
  world.away = true;
  world.now = 19_999;
  expect([lease.healthy(), lease.stands()]).toEqual([true, true]);
  world.now = 20_000;
  expect([lease.healthy(), lease.stands()]).toEqual([false, true]);
  world.now = 30_001;
  expect(lease.stands()).toBe(false);
  await until('silent');
  await lease.heartbeatNow();
  expect(told.filter((what) => what === 'silent')).toHaveLength(1);
  // Back again: it continues under its own id, but rescues nobody for a while.
  world.away = false;
  await lease.heartbeatNow();
  expect([lease.healthy(), lease.stands(), lease.mayRescue()]).toEqual([true, true, false]);
  expect(told.filter((what) => what === 'lost')).toEqual([]);
  world.now = 60_002;
  expect(lease.mayRescue()).toBe(true);
});

test('a stop takes the lease away when nothing is held, and leaves it when something may be', async () => {
  const [clean, unclean] = [start(), start()];
  await Promise.all([clean.until('beat'), unclean.until('beat')]);
  const left = unclean.lease.id();
  const tenures = [clean.lease.tenure(), unclean.lease.tenure()];
  await clean.lease.stop(true);
  await unclean.lease.stop(false);
  expect(await workers()).toEqual([left]);
  expect(unclean.lease.healthy()).toBe(false);
  expect(tenures.map(({ signal }) => signal.aborted)).toEqual([true, true]);
  await sql('delete from workers');
});
