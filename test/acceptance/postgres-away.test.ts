import { describe, expect, test } from 'vitest';
import type { ServerProcess } from '../support/server.ts';
import { sql } from '../support/sql.ts';
import { completed, eventually, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { startPostgres } from './support/postgres-server.ts';
import { openScene } from './support/scene.ts';

/** Texts that must not be in a log, whatever happens to the database. */
function expectCalm(server: ServerProcess): void {
  expect(server.running()).toBe(true);
  expect(server.errors()).not.toMatch(/unhandled|uncaught|\n {4}at /i);
  expect(server.log.filter(({ level }) => level === 'error' || level === 'fatal')).toEqual([]);
}

describe.concurrent('Postgres goes away', { timeout: 150_000 }, () => {
  for (const how of ['fast', 'immediate'] as const) {
    test(`loses nothing over a ${how} restart in mid-run`, async ({ onTestFinished }) => {
      const scene = await openScene(onTestFinished);
      const postgres = await startPostgres();
      scene.defer(() => postgres.close());
      const upstream = await scene.countingUpstream({ delayMs: 30 });
      const server = await scene.start({ dsn: postgres.dsn, upstream });
      const id = await submit(server, itemsOf(1500, how));
      await completed(server, id, 200);
      for (let times = 0; times < 2; times++) {
        await postgres.stop(how);
        await postgres.start();
        await server.ready();
        await completed(server, id, 500 * (times + 1));
      }
      const status = await finished(server, id);
      expect(status.counts).toEqual({ completed: 1500 });
      await expectRecordedOnce(server, postgres.db, id, 1500);
      // Nobody was lost, so nothing was sent a second time.
      const { users } = await upstream.stats();
      expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
      const [rescued] = await sql(postgres.db, 'select count(*)::int as n from batch_items where losses > 0');
      expect(rescued).toEqual({ n: 0 });
      expectCalm(server);
    });
  }

  test('starts before its database does, and waits for it', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const postgres = await startPostgres();
    scene.defer(() => postgres.close());
    const upstream = await scene.countingUpstream();
    await postgres.stop('fast');
    const server = await scene.start({ dsn: postgres.dsn, upstream, waitUntilReady: false });
    await server.logged('not ready');
    const early = await fetch(`${server.url}/healthz`);
    expect(early.status).toBe(503);
    await postgres.start();
    await server.ready();
    const id = await submit(server, itemsOf(100, 'before'));
    await finished(server, id);
    await expectRecordedOnce(server, postgres.db, id, 100);
    expectCalm(server);
  });

  test('calls nothing twice when Postgres stood still for less than a lease', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const postgres = await startPostgres();
    scene.defer(() => postgres.close());
    const upstream = await scene.countingUpstream({ delayMs: 100 });
    const [first, second] = await Promise.all([
      scene.start({ dsn: postgres.dsn, upstream, home: 'a', speed: 5 }),
      scene.start({ dsn: postgres.dsn, upstream, home: 'b', speed: 5 }),
    ]);
    const id = await submit(first!, itemsOf(2000, 'still'));
    await completed(first!, id, 300);
    await postgres.freeze(true);
    // 22 s of the servers' time.
    await new Promise((resolve) => setTimeout(resolve, 4400));
    await postgres.freeze(false);
    const open = () => sql<{ open_items: number }>(postgres.db, 'select open_items from batches');
    await eventually(open, ([batch]) => batch!.open_items === 0);
    await expectRecordedOnce(second!, postgres.db, id, 2000);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
    expectCalm(first!);
    expectCalm(second!);
  });

  test('case 35: rescues nobody and calls nothing twice when Postgres was away for 40 s', async ({
    onTestFinished,
  }) => {
    const scene = await openScene(onTestFinished);
    const postgres = await startPostgres();
    scene.defer(() => postgres.close());
    const upstream = await scene.countingUpstream({ delayMs: 100 });
    const [first, second] = await Promise.all([
      scene.start({ dsn: postgres.dsn, upstream, home: 'a' }),
      scene.start({ dsn: postgres.dsn, upstream, home: 'b' }),
    ]);
    const id = await submit(first!, itemsOf(2500, 'away'));
    await completed(first!, id, 300);
    await postgres.stop('fast');
    // Longer than a lease: without care every worker would take the others for lost.
    await new Promise((resolve) => setTimeout(resolve, 40_000));
    await postgres.start();
    await Promise.all([first!.ready(), second!.ready()]);
    await finished(second!, id);
    await expectRecordedOnce(second!, postgres.db, id, 2500);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
    expect(Object.keys(users).length).toBe(2500);
    const [rescued] = await sql(postgres.db, 'select count(*)::int as n from batch_items where losses > 0');
    expect(rescued).toEqual({ n: 0 });
    expectCalm(first!);
    expectCalm(second!);
  });
});
