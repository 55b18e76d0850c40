import { describe, expect, test } from 'vitest';
import { sql } from '../support/sql.ts';
import { call, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { catalogOf } from './support/catalog.ts';
import { openScene } from './support/scene.ts';

interface Result {
  idx: number;
  state: string;
  error?: string;
  response?: unknown;
}

const resultsOf = async (at: { url: string }, id: string): Promise<Result[]> =>
  (await call(at, 'GET', `/v1/batches/${id}/results`)).json.results;

describe.concurrent('upstreams that misbehave', { timeout: 120_000 }, () => {
  test('that never answer, or drip, are given up after the time limit, and the slots come back', async ({
    onTestFinished,
  }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const env = { RELAY_BATCH_ITEM_TIMEOUT_S: '2', RELAY_BATCH_CONCURRENCY: '3' };
    const server = await scene.start({ dsn, upstream, env });
    const models = ['hang', 'hang-body', 'drip'];
    const id = await submit(
      server,
      itemsOf(12, 'hang', (idx) => models[idx] ?? 'fast'),
    );
    await finished(server, id);
    await expectRecordedOnce(server, db, id, 12);
    const results = await resultsOf(server, id);
    for (const { error } of results.slice(0, 3)) expect(error).toBe('batch item: timed out after 2s');
    expect(results.slice(3).every(({ state }) => state === 'completed')).toBe(true);
    const kinds = await sql(db, 'select distinct error_kind from usage_events where error_kind is not null');
    expect(kinds).toEqual([{ error_kind: 'timeout' }]);
    // Their connections are closed, not left to the upstream.
    expect(upstream.received.filter(({ model }) => models.includes(model)).every((r) => r.closedEarly)).toBe(true);
  });

  test('with one storm of 429 on one key leave the other keys to carry on', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    upstream.failKey('upstream-1', 429, { 'retry-after': '60' });
    const server = await scene.start({ dsn, upstream, catalog: catalogOf(upstream.url, 2) });
    const id = await submit(server, itemsOf(400, 'storm'));
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 400 });
    await expectRecordedOnce(server, db, id, 400);
    expect(upstream.countOf('key', 'upstream-2')).toBe(400);
    // Open after the first answer: at most what was in the slots went to it.
    expect(upstream.countOf('key', 'upstream-1')).toBeLessThanOrEqual(16);
  });

  test('with three 500s on the only key make a thousand items pause, not fail', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    let calls = 0;
    upstream.answerWith((_, response) => {
      const status = calls++ < 3 ? 500 : 200;
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end('{"choices":[]}');
    });
    // One slot, so that no success in flight closes the breaker again.
    const server = await scene.start({ dsn, upstream, env: { RELAY_BATCH_CONCURRENCY: '1' } });
    const id = await submit(server, itemsOf(1000, 'pause'));
    const status = await finished(server, id);
    expect(status.counts).toEqual({ completed: 997, discarded: 3 });
    await expectRecordedOnce(server, db, id, 1000);
    expect(upstream.received.length).toBe(1000);
  });

  test('that fail for a while fail only the items that were in the slots', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    upstream.failKey('upstream-1', 503);
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(1000, 'outage'));
    // Sixteen slots, then one probe for each step of the back-off.
    await upstream.waitForRequests(18);
    upstream.failKey('upstream-1', null);
    const status = await finished(server, id);
    expect(status.counts.discarded).toBeLessThanOrEqual(20);
    expect(status.counts.completed).toBe(1000 - (status.counts.discarded ?? 0));
    await expectRecordedOnce(server, db, id, 1000);
  });

  test('that answer nothing but 400 still end the batch', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const server = await scene.start({ dsn, upstream });
    const id = await submit(server, itemsOf(300, 'bad', 'status-400'));
    const status = await finished(server, id);
    expect(status.counts).toEqual({ discarded: 300 });
    await expectRecordedOnce(server, db, id, 300);
    const texts = new Set((await resultsOf(server, id)).map(({ error }) => error));
    expect([...texts]).toEqual(['batch item: upstream status 400']);
  });

  test('one odd item, or one odd answer, suffers alone', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.faultyUpstream();
    const usages = ['{"prompt_tokens":1e300,"completion_tokens":-1}', '"many"', '{"prompt_tokens":[{}]}', 'null'];
    upstream.answerWith((request, response) => {
      const idx = Number(/-(\d+)$/.exec(JSON.parse(request.body.toString()).user)![1]);
      response.writeHead(200, { 'content-type': 'application/json' });
      const usage = usages[idx] ?? '{"prompt_tokens":3,"completion_tokens":2}';
      response.end(`{"choices":[{"finish_reason":"a\\u0000${'b'.repeat(200)}"}],"usage":${usage}}`);
    });
    const server = await scene.start({ dsn, upstream });
    const item = (idx: number, model = '"fast"') => `{"model":${model},"user":"odd-${idx}"}`;
    const items = [
      ...usages.map((_, idx) => item(idx)),
      item(4, '"a\\u0000b"'),
      item(5, JSON.stringify('m'.repeat(10 * 1024 * 1024))),
      item(6, '"\\ud800"'),
      '{"model":"fast","user":"odd-7","n":9007199254740993,"z":"\\u0000"}',
      'null',
      '[1]',
      '"{\\"model\\":\\"fast\\"}"',
      item(11),
    ];
    const id = await submit(server, `{"shape":"openai","requests":[${items.join(',')}]}`);
    const status = await finished(server, id);
    await expectRecordedOnce(server, db, id, items.length);
    expect(status.counts).toEqual({ completed: 6, discarded: 6 });
    const results = await resultsOf(server, id);
    expect(results[4]!.error).toBe('batch item: route "a\\u0000b": model not found');
    expect(results[5]!.error!.length).toBeLessThan(200);
    for (const idx of [8, 9, 10]) expect(results[idx]!.error).toBe('batch item: request body must be a JSON object');
    const sent = upstream.received.find(({ body }) => body.includes('odd-7'))!;
    expect(sent.body.toString()).toBe(items[7]);
  });

  test('are not called again for any number of wake-ups at once', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { dsn, db } = await scene.database();
    const upstream = await scene.countingUpstream({ delayMs: 20 });
    const [first, second] = await Promise.all([
      scene.start({ dsn, upstream, home: 'a' }),
      scene.start({ dsn, upstream, home: 'b' }),
    ]);
    const id = await submit(first, itemsOf(1000, 'wake'));
    for (let round = 0; round < 20; round++) {
      const wakes = Array.from({ length: 8 }, () => sql(db, `select pg_notify('relay_wake', 'work')`));
      await Promise.all([...wakes, sql(db, `select pg_notify('relay_wake', 'nonsense')`)]);
    }
    await finished(second, id);
    await expectRecordedOnce(second, db, id, 1000);
    const { users } = await upstream.stats();
    expect(Object.values(users).filter((times) => times > 1)).toEqual([]);
  });
});
