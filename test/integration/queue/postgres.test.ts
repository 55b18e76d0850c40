import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { createListener, createPostgresQueue, type Listener } from '../../../lib/queue/postgres.ts';
import type { Wake } from '../../../lib/queue/queue.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
const listeners: Listener[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
afterEach(async () => {
  for (const listener of listeners.splice(0)) await listener.stop();
});

const sql = (text: string) => database.sql(text);
const backends = () =>
  sql(`select pid from pg_stat_activity where application_name = 'relay-batch listen'
  and datname = current_database()`);

/** A listener with what it has heard so far; `until` resolves when that fits. */
function listen() {
  const heard: string[] = [];
  const waiters = new Set<() => void>();
  const hear = (what: string) => {
    heard.push(what);
    for (const waiter of waiters) waiter();
  };
  const listener = createListener({
    dsn: database.dsn,
    log: createLog('silent'),
    onWake: (wake: Wake) => hear(wake.kind === 'cancel' ? `cancel ${wake.batchId}` : wake.kind),
    onReconnect: () => hear('connected'),
    onBreakers: () => hear('breakers'),
  });
  listeners.push(listener);
  const until = (what: string, times = 1) =>
    new Promise<void>((resolve) => {
      const waiter = () => {
        if (heard.filter((one) => one === what).length < times) return;
        waiters.delete(waiter);
        resolve();
      };
      waiters.add(waiter);
      waiter();
    });
  return { listener, heard, until };
}

test('hears each kind of wake-up, those of other replicas too, and nothing it does not know', async () => {
  const [one, other] = [listen(), listen()];
  await Promise.all([one.until('connected'), other.until('connected')]);
  const queue = createPostgresQueue(database.db);
  await queue.send({ kind: 'work' });
  await sql(`select pg_notify('relay_wake', 'strange'), pg_notify('relay_wake', ''), pg_notify('other', 'work')`);
  await queue.send({ kind: 'cancel', batchId: 'b-1' });
  await sql(`select pg_notify('relay_catalog', ''), pg_notify('relay_breakers', '')`);
  for (const { until, heard } of [one, other]) {
    await until('breakers');
    expect(heard).toEqual(['connected', 'work', 'cancel b-1', 'catalog', 'breakers']);
  }
});

test('a connection that is cut is made anew, and says that it may have missed something', async () => {
  const { listener, until } = listen();
  await until('connected');
  const before = await backends();
  expect(before).toHaveLength(1);
  await sql(`select pg_terminate_backend(${before[0]!.pid})`);
  await until('connected', 2);
  expect(listener.connected()).toBe(true);
  expect((await backends())[0]!.pid).not.toBe(before[0]!.pid);
  await createPostgresQueue(database.db).send({ kind: 'work' });
  await until('work');
});

test('a stop ends the connection, and nothing is heard any more', async () => {
  const { listener, until, heard } = listen();
  await until('connected');
  await listener.stop();
  await createPostgresQueue(database.db).send({ kind: 'work' });
  while ((await backends()).length > 0) await sql('select pg_sleep(0.01)');
  expect(heard).toEqual(['connected']);
});

test('a stop while nothing answers ends at once', async () => {
  const listener = createListener({
    dsn: 'postgres://nobody@127.0.0.1:1/none',
    log: createLog('silent'),
    onWake: () => {},
    onReconnect: () => {},
    onBreakers: () => {},
  });
  expect(listener.connected()).toBe(false);
  await listener.stop();
});
