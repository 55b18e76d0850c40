import { describe, expect, test } from 'vitest';
import { freePort } from '../support/server.ts';
import { sql } from '../support/sql.ts';
import { expectRecordedOnce, finished, itemsOf, statusOf, submit } from './support/calls.ts';
import { openScene } from './support/scene.ts';

const states = 'select state::text, count(*)::int as n from batch_items group by state order by state';
const LEASES = 'select count(*)::int as n from workers';

describe.concurrent('a stop by signal', { timeout: 120_000 }, () => {
  test('lets running items finish within the deadline and leaves the others as they were', async ({
    onTestFinished,
  }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const server = await scene.start({ dsn, upstream, env: { RELAY_BATCH_CONCURRENCY: '8' } });
    const letGo = upstream.hold();
    const id = await submit(server, itemsOf(30, 'stop'));
    await upstream.waitForRequests(8);
    server.signal('SIGTERM');
    await server.logged('stopping');
    letGo();
    expect(await server.exited).toBe(0);
    expect(await sql(db, states)).toEqual([
      { state: 'available', n: 22 },
      { state: 'completed', n: 8 },
    ]);
    expect(await sql(db, 'select count(*)::int as n from usage_events')).toEqual([{ n: 8 }]);
    expect(await sql(db, LEASES)).toEqual([{ n: 0 }]);
    const spent = 'select sum(attempts + rounds + losses)::int as n from batch_items where state = $1::item_state';
    expect(await sql(db, spent, ['available'])).toEqual([{ n: 0 }]);
    expect(upstream.received.length).toBe(8);

    const next = await scene.start({ dsn, upstream });
    await finished(next, id);
    await expectRecordedOnce(next, db, id, 30);
    expect(upstream.received.length).toBe(30);
  });

  test('aborts and releases what runs beyond the deadline, and nothing is spent', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const server = await scene.start({
      dsn,
      upstream,
      env: { RELAY_BATCH_CONCURRENCY: '8', RELAY_SHUTDOWN_DEADLINE_S: '1' },
    });
    const letGo = upstream.hold();
    scene.defer(async () => letGo());
    const id = await submit(server, itemsOf(30, 'late'));
    await upstream.waitForRequests(8);
    expect(await server.stop()).toBe(0);
    expect(await sql(db, states)).toEqual([{ state: 'available', n: 30 }]);
    expect(await sql(db, 'select sum(rounds + losses)::int as n from batch_items')).toEqual([{ n: 0 }]);
    expect(await sql(db, LEASES)).toEqual([{ n: 0 }]);
    expect(upstream.received.every((request) => request.closedEarly)).toBe(true);

    letGo();
    const next = await scene.start({ dsn, upstream });
    const status = await finished(next, id);
    expect(status.counts).toEqual({ completed: 30 });
    await expectRecordedOnce(next, db, id, 30);
  });

  test('reaches the whole group, and the embedded Postgres still takes the last outcomes', async ({
    onTestFinished,
  }) => {
    const scene = await openScene(onTestFinished);
    const upstream = await scene.faultyUpstream();
    const server = await scene.start({ dsn: null, upstream, env: { RELAY_BATCH_CONCURRENCY: '8' } });
    const letGo = upstream.hold();
    const id = await submit(server, itemsOf(20, 'group'));
    await upstream.waitForRequests(8);
    server.signal('SIGINT', 'group');
    await server.logged('stopping');
    letGo();
    expect(await server.exited).toBe(0);
    expect(upstream.received.length).toBe(8);

    const next = await scene.start({ dsn: null, upstream });
    await finished(next, id);
    // The answers from before the stop were recorded: nothing was sent again.
    expect(upstream.received.length).toBe(20);
    expect(await next.stop()).toBe(0);
  });

  test('ends at once with a second signal, and the next start takes the items back', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_SHUTDOWN_DEADLINE_S: '3600' };
    const server = await scene.start({ dsn, upstream, env });
    const letGo = upstream.hold();
    const id = await submit(server, itemsOf(10, 'second'));
    await upstream.waitForRequests(10);
    server.signal('SIGTERM');
    await server.logged('stopping');
    server.signal('SIGTERM');
    expect(await server.exited).toBe(1);
    letGo();
    const next = await scene.start({ dsn, upstream, env });
    await finished(next, id, 25_000);
    await expectRecordedOnce(next, db, id, 10);
  });

  test.for(['SIGINT', 'SIGHUP'] as const)(
    'takes a %s that npm passes on as well for one signal',
    async (signal, { onTestFinished }) => {
      const scene = await openScene(onTestFinished);
      const { dsn, db } = await scene.database();
      const upstream = await scene.faultyUpstream();
      const server = await scene.start({ dsn, upstream, env: { npm_lifecycle_event: 'start' } });
      const letGo = upstream.hold();
      await submit(server, itemsOf(8, 'twice'));
      await upstream.waitForRequests(8);
      server.signal(signal);
      server.signal(signal);
      await server.logged('stopping');
      letGo();
      expect(await server.exited).toBe(0);
      expect(await sql(db, states)).toEqual([{ state: 'completed', n: 8 }]);
    },
  );

  test('leaves no item running whenever it comes after a submit', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const ids: string[] = [];
    for (let tries = 0; tries < 6; tries++) {
      const server = await scene.start({ dsn, upstream });
      ids.push(await submit(server, itemsOf(2000, `soon${tries}`)));
      await new Promise((resolve) => setTimeout(resolve, tries * 7));
      expect(await server.stop()).toBe(0);
      expect(await sql(db, `select count(*)::int as n from batch_items where state = 'running'`)).toEqual([{ n: 0 }]);
      expect(await sql(db, LEASES)).toEqual([{ n: 0 }]);
    }
    const server = await scene.start({ dsn, upstream });
    for (const id of ids) {
      await finished(server, id);
      await expectRecordedOnce(server, db, id, 2000);
    }
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
  });

  test('ends a server that still waits for its database', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const upstream = await scene.faultyUpstream();
    const dsn = `postgres://nobody@127.0.0.1:${await freePort()}/none`;
    const server = await scene.start({ dsn, upstream, waitUntilReady: false });
    await server.logged('not ready');
    expect(await server.stop()).toBe(0);
    expect(server.errors()).not.toMatch(/unhandled/i);
  });

  test('answers requests under way before it ends', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 300 });
    const server = await scene.start({ dsn, upstream });
    const body = itemsOf(20_000, 'under way');
    const answer = submit(server, body);
    await new Promise((resolve) => setTimeout(resolve, 60));
    const code = server.stop();
    // Whole or refused; the connection is not just cut.
    const id = await answer.catch((error: Error) => error);
    if (id instanceof Error) expect(id.message).toMatch(/503|ECONNREFUSED|fetch failed/);
    expect(await code).toBe(0);
    const next = await scene.start({ dsn, upstream });
    if (typeof id === 'string') expect((await statusOf(next, id)).TotalItems).toBe(20_000);
  });
});
