import { describe, expect, test } from 'vitest';
import { sql } from '../support/sql.ts';
import { call, completed, eventually, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { KEYS } from './support/catalog.ts';
import { openScene } from './support/scene.ts';

describe.concurrent('two replicas', { timeout: 120_000 }, () => {
  test('that commit the last two items of a batch at once end it exactly once', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_BATCH_CONCURRENCY: '1', RELAY_BATCH_FLUSH_MS: '0' };
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, env, home: 'a' }),
      scene.start({ dsn, upstream, env, home: 'b' }),
    ]);
    let shared = 0;
    for (let tries = 0; tries < 25; tries++) {
      // Who has finished items in the last 250 ms claims ahead of its slots, and would take both.
      await new Promise((resolve) => setTimeout(resolve, 300));
      upstream.forget();
      const letGo = upstream.hold();
      const id = await submit(tries % 2 === 0 ? first : second, itemsOf(2, `last${tries}`));
      await upstream.waitForRequests(2);
      letGo();
      await finished(first, id);
      await expectRecordedOnce(second, db, id, 2);
      const [instances] = await sql<{ n: number }>(
        db,
        'select count(distinct instance)::int as n from usage_events where batch_id = $1::uuid',
        [id],
      );
      if (instances!.n === 2) shared++;
    }
    // One slot each: every batch was run by both.
    expect(shared).toBe(25);
  });

  test('share a batch, and either one answers for it', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, home: 'a' }),
      scene.start({ dsn, upstream, home: 'b' }),
    ]);
    const id = await submit(first, itemsOf(1500, 'share'));
    await finished(second, id);
    await expectRecordedOnce(first, db, id, 1500);
    const counts = await sql<{ n: number }>(db, 'select count(*)::int as n from usage_events group by instance');
    expect(counts.length).toBe(2);
    const [one, other] = await Promise.all([first, second].map((at) => call(at, 'GET', `/v1/batches/${id}/results`)));
    expect(one!.text).toBe(other!.text);
  });

  test('both refuse a key that was revoked, for its finished batches too', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn } = await scene.database();
    const upstream = await scene.countingUpstream();
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, home: 'a' }),
      scene.start({ dsn, upstream, home: 'b' }),
    ]);
    const id = await submit(first, itemsOf(5, 'revoked'));
    await finished(first, id);
    const admin = { authorization: 'Bearer test-admin' };
    const key = (await (await fetch(`${first.controlUrl}/api/keys/ann`, { headers: admin })).json()) as {
      metadata: { id: string };
    };
    const revoked = await fetch(`${first.controlUrl}/api/keys/by-id/${key.metadata.id}/revoke`, {
      method: 'POST',
      headers: admin,
    });
    expect(revoked.status).toBeLessThan(300);
    for (const path of ['', '/results', '?items=false']) {
      const answer = await call(first, 'GET', `/v1/batches/${id}${path}`);
      expect([answer.status, answer.json.error.code]).toEqual([401, 'api_key_revoked']);
    }
    const other = await eventually(
      () => call(second, 'GET', `/v1/batches/${id}`),
      ({ status }) => status === 401,
    );
    expect(other.json.error.code).toBe('api_key_revoked');
    expect((await call(second, 'POST', `/v1/batches/${id}/cancel`)).status).toBe(401);
  });

  test('discard the waiting items of a key that is revoked in mid-run', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 100 });
    const server = await scene.start({ dsn, upstream, env: { RELAY_BATCH_CONCURRENCY: '4' } });
    const id = await submit(server, itemsOf(500, 'mid-run'));
    await completed(server, id, 20);
    const admin = { authorization: 'Bearer test-admin' };
    const key = await (await fetch(`${server.controlUrl}/api/keys/ann`, { headers: admin })).json();
    const { id: keyId } = (key as { metadata: { id: string } }).metadata;
    await fetch(`${server.controlUrl}/api/keys/by-id/${keyId}/revoke`, { method: 'POST', headers: admin });
    const open = () => sql<{ open_items: number }>(db, 'select open_items from batches where id = $1::uuid', [id]);
    await eventually(open, ([batch]) => batch!.open_items === 0);
    const errors = await sql<{ error: string; n: number }>(
      db,
      `select error, count(*)::int as n from batch_items where state = 'discarded' group by error`,
    );
    expect(errors).toEqual([
      { error: 'batch item: credential no longer valid: api key revoked', n: expect.any(Number) },
    ]);
    const [events] = await sql(db, 'select count(*)::int as n from usage_events where batch_id = $1::uuid', [id]);
    expect(events).toEqual({ n: 500 });
    // Somebody else's batches run on.
    const answer = await fetch(`${server.url}/v1/batches`, {
      method: 'POST',
      headers: { authorization: `Bearer ${KEYS.RELAY_KEY_BOB}` },
      body: itemsOf(10, 'bob'),
    });
    expect(answer.status).toBe(202);
  });
});

describe('case 38: a second server on one data dir', { timeout: 60_000 }, () => {
  test('is told so, and the database of the first one stays up', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const upstream = await scene.countingUpstream({ delayMs: 10 });
    const first = await scene.start({ dsn: null, upstream });
    const id = await submit(first, itemsOf(1000, 'first'));
    const second = await scene.start({ dsn: null, upstream, waitUntilReady: false });
    expect(await second.exited).toBe(1);
    expect(second.errors()).toBe(`data dir in use by pid ${first.pid}\n`);
    const status = await finished(first, id);
    expect(status.counts).toEqual({ completed: 1000 });
    expect(await first.stop()).toBe(0);
  });
});
