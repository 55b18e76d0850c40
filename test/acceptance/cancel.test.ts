import { describe, expect, test } from 'vitest';
import { ageLeases } from '../support/aging.ts';
import { call, completed, eventually, expectRecordedOnce, finished, itemsOf, submit, until } from './support/calls.ts';
import { openScene } from './support/scene.ts';

const cancel = (at: { url: string }, id: string) => call(at, 'POST', `/v1/batches/${id}/cancel`);
const CANCELLED = [200, { status: 'cancelled' }];

describe.concurrent('a cancel', { timeout: 120_000 }, () => {
  test('right after the submit leaves every item completed or cancelled', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 10 });
    const server = await scene.start({ dsn, upstream });
    for (let tries = 0; tries < 10; tries++) {
      const id = await submit(server, itemsOf(300, `soon${tries}`));
      const answer = await cancel(server, id);
      expect([answer.status, answer.json]).toEqual(CANCELLED);
      const status = await finished(server, id);
      expect(status.Status).toBe('cancelled');
      expect(Object.keys(status.counts).filter((state) => !/^(completed|cancelled)$/.test(state))).toEqual([]);
      await expectRecordedOnce(server, db, id, 300);
    }
  });

  test('twice at once is one cancel', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 30 });
    const server = await scene.start({ dsn, upstream });
    for (let tries = 0; tries < 5; tries++) {
      const id = await submit(server, itemsOf(400, `twice${tries}`));
      await completed(server, id, tries * 10);
      const answers = await Promise.all([cancel(server, id), cancel(server, id), cancel(server, id)]);
      for (const answer of answers) expect([answer.status, answer.json]).toEqual(CANCELLED);
      await finished(server, id);
      await expectRecordedOnce(server, db, id, 400);
    }
  });

  test('at the very end keeps finished results, and counts always sum to the total', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream();
    const server = await scene.start({ dsn, upstream });
    for (let tries = 0; tries < 20; tries++) {
      const id = await submit(server, itemsOf(60, `end${tries}`));
      await completed(server, id, Math.min(59, tries * 4));
      const answer = await cancel(server, id);
      expect([answer.status, answer.json]).toEqual(CANCELLED);
      const status = await finished(server, id);
      await expectRecordedOnce(server, db, id, 60);
      expect((await finished(server, id)).counts).toEqual(status.counts);
    }
  });

  test('closes the upstream connections of running items on both replicas', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_BATCH_CONCURRENCY: '4' };
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, env, home: 'a' }),
      scene.start({ dsn, upstream, env, home: 'b' }),
    ]);
    const id = await submit(first, itemsOf(20, 'running', 'hang'));
    await upstream.waitForRequests(8);
    const answer = await cancel(second, id);
    expect([answer.status, answer.json]).toEqual(CANCELLED);
    // The next heartbeat would do it too, but only after 5 s.
    const open = async () => upstream.received.filter((request) => !request.closedEarly).length;
    await eventually(open, (n) => n === 0, 3000);
    const status = await finished(first, id);
    expect(status.counts).toEqual({ cancelled: 20 });
    await expectRecordedOnce(second, db, id, 20);
    expect(upstream.received.length).toBe(8);
    // Slots are free again.
    const next = await submit(second, itemsOf(30, 'next'));
    await finished(first, next);
    await expectRecordedOnce(first, db, next, 30);
  });

  test('takes an answer that was already whole', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    // Answers wait for their group longer than the cancel takes.
    const server = await scene.start({ dsn, upstream, env: { RELAY_BATCH_FLUSH_MS: '1000' } });
    const id = await submit(
      server,
      itemsOf(20, 'whole', (idx) => (idx < 5 ? 'fast' : 'hang')),
    );
    await upstream.waitForRequests(16);
    await new Promise((resolve) => setTimeout(resolve, 200));
    await cancel(server, id);
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 5, cancelled: 15 });
    await expectRecordedOnce(server, db, id, 20);
  });

  test('ends a batch whose worker was killed', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const first = await scene.start({ dsn, upstream, home: 'a' });
    const id = await submit(first, itemsOf(40, 'killed', 'hang'));
    await upstream.waitForRequests(16);
    const second = await scene.start({ dsn, upstream, home: 'b', env: { RELAY_BATCH_CONCURRENCY: '1' } });
    await first.kill();
    await ageLeases(db);
    await cancel(second, id);
    await until(second, id, (status) => status.counts.cancelled === 24 || status.CompletedAt !== null);
    const status = await finished(second, id);
    expect(status.counts).toEqual({ cancelled: 40 });
    await expectRecordedOnce(second, db, id, 40);
  });
});
