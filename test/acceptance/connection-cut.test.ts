import { describe, expect, test } from 'vitest';
import type { ServerOptions } from '../support/server.ts';
import { sql } from '../support/sql.ts';
import {
  call,
  completed,
  eventually,
  expectRecordedOnce,
  finished,
  itemsOf,
  statusOf,
  submit,
} from './support/calls.ts';
import { KEYS } from './support/catalog.ts';
import { startProxy } from './support/proxy.ts';
import { openScene } from './support/scene.ts';

type Defer = Parameters<typeof openScene>[0];

/** A server whose database is behind a proxy that loses things. */
async function behindProxy(
  onTestFinished: Defer,
  options: { delayMs?: number } & Partial<Pick<ServerOptions, 'env' | 'quick' | 'speed'>> = {},
) {
  const scene = await openScene(onTestFinished);
  const database = await scene.database();
  const proxy = await startProxy(database.dsn);
  scene.defer(() => proxy.close());
  const upstream = await scene.countingUpstream({ delayMs: options.delayMs ?? 5 });
  const { delayMs: _, ...how } = options;
  const start = () => scene.start({ dsn: proxy.dsn, upstream, ...how });
  const sentTwice = async () => {
    const { users } = await upstream.stats();
    return Object.keys(users).filter((user) => users[user]! > 1);
  };
  return { scene, db: database.db, proxy, upstream, start, sentTwice };
}

describe.concurrent('answers of Postgres that are lost', { timeout: 120_000 }, () => {
  test('records outcomes once when the connection is cut after the commit', async ({ onTestFinished }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished);
    const server = await start();
    const cut = proxy.cutAnswers({ statement: 'commit_outcomes', times: 4 });
    const id = await submit(server, itemsOf(800, 'commit'));
    await cut;
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 800 });
    await expectRecordedOnce(server, db, id, 800);
    expect(await sentTwice()).toEqual([]);
  });

  test('ends the batch when the answer of its very last commit is lost', async ({ onTestFinished }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished, { quick: true });
    const server = await start();
    const cut = proxy.cutAnswers({ statement: 'commit_outcomes', times: 1 });
    const id = await submit(server, itemsOf(1, 'last'));
    await cut;
    await finished(server, id);
    await expectRecordedOnce(server, db, id, 1);
    expect(await sentTwice()).toEqual([]);
    // No event said that it is finished; the sweep finds it all the same.
    const compacted = () => sql<{ results_id: string | null }>(db, 'select results_id from batches', []);
    await eventually(compacted, ([row]) => row!.results_id !== null);
    await expectRecordedOnce(server, db, id, 1);
  });

  test('runs the items of a claim whose answer is lost', async ({ onTestFinished }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished);
    const server = await start();
    const cut = proxy.cutAnswers({ statement: 'claim_items', times: 3 });
    const id = await submit(server, itemsOf(300, 'claim'));
    await cut;
    await finished(server, id, 25_000);
    await expectRecordedOnce(server, db, id, 300);
    expect(await sentTwice()).toEqual([]);
  });

  test('runs the only item of a batch whose claim was lost', async ({ onTestFinished }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished);
    const server = await start();
    const cut = proxy.cutAnswers({ statement: 'claim_items', times: 1 });
    const id = await submit(server, itemsOf(1, 'only'));
    await cut;
    await finished(server, id, 25_000);
    await expectRecordedOnce(server, db, id, 1);
    expect(await sentTwice()).toEqual([]);
  });

  test('keeps a batch, and its input, whose submit was committed and not answered', async ({ onTestFinished }) => {
    const { db, proxy, start } = await behindProxy(onTestFinished);
    const server = await start();
    const cut = proxy.cutAnswers({ statement: 'commit\0', after: 'insert_batch', times: 1 });
    const answer = await call(server, 'POST', '/v1/batches', itemsOf(50, 'submit'));
    await cut;
    expect([202, 503]).toContain(answer.status);
    const batches = await sql<{ id: string }>(db, 'select id from batches');
    expect(batches.length).toBe(1);
    const { id } = batches[0]!;
    if (answer.status === 202) expect(answer.json.id).toBe(id);
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 50 });
    await expectRecordedOnce(server, db, id, 50);
  });

  test('starts although the answers of its first statements are lost', async ({ onTestFinished }) => {
    const { scene, db, proxy, upstream, start } = await behindProxy(onTestFinished, { delayMs: 200 });
    const first = await start();
    const id = await submit(first, itemsOf(100, 'start'));
    await completed(first, id, 10);
    await first.kill();
    const statements = ['lock_former_workers', 'rescue_items', 'insert_worker', 'beat_worker', 'apply_catalog'];
    for (const statement of statements) void proxy.cutAnswers({ statement, times: 1 });
    void proxy.cutAnswers({ statement: 'commit\0', after: 'rescue_items', times: 1 });
    const second = await scene.start({ dsn: proxy.dsn, upstream });
    await finished(second, id, 25_000);
    await expectRecordedOnce(second, db, id, 100);
    expect(second.running()).toBe(true);
    expect(second.errors()).not.toMatch(/unhandled/i);
  });

  test('releases items once when that answer is lost during a stop', async ({ onTestFinished }) => {
    const { db, proxy, start } = await behindProxy(onTestFinished, {
      delayMs: 3000,
      env: { RELAY_SHUTDOWN_DEADLINE_S: '0' },
    });
    const server = await start();
    const id = await submit(server, itemsOf(40, 'release'));
    await eventually(
      () => statusOf(server, id),
      (status) => status.counts.running === 16,
    );
    const cut = proxy.cutAnswers({ statement: 'release_items', times: 1 });
    server.signal('SIGTERM');
    await cut;
    expect(await server.exited).toBe(0);
    const states = await sql(db, 'select state::text, count(*)::int as n from batch_items group by state', []);
    expect(states).toEqual([{ state: 'available', n: 40 }]);
  });

  test('answers a cancel whose answer was lost, and cancels once', async ({ onTestFinished }) => {
    const { db, proxy, start } = await behindProxy(onTestFinished, { delayMs: 300 });
    const server = await start();
    const id = await submit(server, itemsOf(500, 'cancel'));
    await completed(server, id, 10);
    const cut = proxy.cutAnswers({ statement: 'cancel_batch', times: 1 });
    const first = await call(server, 'POST', `/v1/batches/${id}/cancel`);
    await cut;
    expect([200, 503]).toContain(first.status);
    const second = await call(server, 'POST', `/v1/batches/${id}/cancel`);
    expect([second.status, second.json]).toEqual([200, { status: 'cancelled' }]);
    await finished(server, id);
    await expectRecordedOnce(server, db, id, 500);
  });

  test('runs the items of a claim that Postgres gets only after the service has given it up', async ({
    onTestFinished,
  }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished, { delayMs: 600, speed: 5 });
    const server = await start();
    // 22 s of the server's time: it abandons a statement after 15.
    const late = proxy.deliverLate('claim_items', 4400);
    const id = await submit(server, itemsOf(80, 'late'));
    await late;
    // It took items that the worker does not know of.
    expect((await statusOf(server, id)).counts.available).toBeLessThan(64);
    await finished(server, id);
    await expectRecordedOnce(server, db, id, 80);
    expect(await sentTwice()).toEqual([]);
  });

  test('makes one batch of a submit that is sent again with its Idempotency-Key', async ({ onTestFinished }) => {
    const { db, proxy, start, sentTwice } = await behindProxy(onTestFinished);
    const server = await start();
    const send = () =>
      fetch(`${server.url}/v1/batches`, {
        method: 'POST',
        headers: { authorization: `Bearer ${KEYS.RELAY_KEY_ANN}`, 'idempotency-key': 'once' },
        body: itemsOf(30, 'once'),
      });
    for (const statement of ['insert_batch', 'insert_items', 'commit\0']) {
      const cut = proxy.cutAnswers({ statement, after: 'claim_idempotency_key', times: 1 });
      await send();
      await cut;
    }
    const last = await send();
    expect(last.status).toBe(202);
    const { id } = (await last.json()) as { id: string };
    expect(await sql(db, 'select id from batches')).toEqual([{ id }]);
    await finished(server, id);
    await expectRecordedOnce(server, db, id, 30);
    expect(await sentTwice()).toEqual([]);
  });

  test('outlives the end of all its connections, again and again', async ({ onTestFinished }) => {
    const { db, start, sentTwice } = await behindProxy(onTestFinished, { delayMs: 20 });
    const server = await start();
    const id = await submit(server, itemsOf(2500, 'ended'));
    for (let times = 1; times <= 8; times++) {
      await eventually(
        () => sql<{ n: number }>(db, `select count(*)::int as n from batch_items where state = 'completed'`),
        ([row]) => row!.n >= times * 200,
      );
      await sql(
        db,
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name like 'relay-batch%'`,
      );
    }
    await server.ready();
    await eventually(
      () => sql<{ open_items: number }>(db, 'select open_items from batches'),
      ([batch]) => batch!.open_items === 0,
    );
    await expectRecordedOnce(server, db, id, 2500);
    expect(await sentTwice()).toEqual([]);
    expect(server.errors()).not.toMatch(/unhandled/i);
  });

  test('goes on when all its connections fall silent', async ({ onTestFinished }) => {
    const { db, proxy, start } = await behindProxy(onTestFinished, { delayMs: 50, speed: 5 });
    const server = await start();
    const id = await submit(server, itemsOf(2000, 'silent'));
    await completed(server, id, 200);
    proxy.fallSilent();
    const open = () => sql<{ open_items: number }>(db, 'select open_items from batches');
    await eventually(open, ([batch]) => batch!.open_items === 0);
    await expectRecordedOnce(server, db, id, 2000);
    expect(server.running()).toBe(true);
  });
});
