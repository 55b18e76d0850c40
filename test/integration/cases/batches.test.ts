import { readdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { WAYS, type Way } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';

const CATALOG = `---
kind: RateLimit
metadata: {name: slowly}
spec: {rules: [{meter: requests, amount: 2, window: 1, strategy: token-bucket}]}
---
kind: Policy
metadata: {name: limited}
spec: {models: [test], rateLimit: slowly}
---
kind: Key
metadata: {name: eve}
spec: {policy: limited, valueFrom: {kind: env, env: TEST_KEY_EVE}}
`;

let service: Service;

beforeAll(async () => {
  service = await startService({ catalog: CATALOG, env: { RELAY_BATCH_CONCURRENCY: '4' } });
});
afterAll(() => service.close());
beforeEach(() => {
  service.upstream.forget();
  service.upstream.answerWith(null);
});

const many = (n: number, model = 'any') => Array.from({ length: n }, (_, i) => ({ model, n: i }));
const cancel = (way: Way, id: string) => service.call(way, { method: 'POST', path: `/v1/batches/${id}/cancel` });
const status = async (way: Way, id: string) =>
  (await service.call(way, { path: `/v1/batches/${id}?items=false` })).json;

/** Answers 500 to the first `failures` requests of each item. */
function failFirst(failures: number, code = 500) {
  const seen = new Map<string, number>();
  service.upstream.answerWith(({ body }, response) => {
    const name = body.toString();
    const n = (seen.get(name) ?? 0) + 1;
    seen.set(name, n);
    response.writeHead(n <= failures ? code : 200, { 'content-type': 'application/json' });
    response.end('{"choices":[]}');
  });
}

describe.each(WAYS)('over %s', (way) => {
  test('max_attempts: a failure that may pass is run again, and there is still one event', async () => {
    failFirst(1);
    const { id, results } = await service.run(way, many(3), { more: { max_attempts: 3 } });
    expect(results.map(({ state }) => state)).toEqual(Array(3).fill('completed'));
    expect(service.upstream.received).toHaveLength(6);
    const events = await service.events(id);
    expect(events.map(({ attempts, status: s }) => [attempts, s])).toEqual(Array(3).fill([2, 200]));
  });

  test('max_attempts: the last failure gives the text when all are spent; a 400 is final at once', async () => {
    failFirst(9, 503);
    const spent = await service.run(way, many(1), { more: { max_attempts: 2 } });
    expect(spent.results[0]!.error).toBe('batch item: upstream status 503');
    expect((await service.events(spent.id))[0]).toMatchObject({ attempts: 2 });
    failFirst(9, 400);
    const final = await service.run(way, many(1), { more: { max_attempts: 10 } });
    expect(final.results[0]!.error).toBe('batch item: upstream status 400');
    expect((await service.events(final.id))[0]).toMatchObject({ attempts: 1 });
  });

  test('without max_attempts a failure is final', async () => {
    failFirst(1);
    const { results } = await service.run(way, many(1));
    expect(results[0]!.error).toBe('batch item: upstream status 500');
  });

  test('on_limit: items over the limit fail, or wait when they are asked to', async () => {
    const waits = await service.run(way, many(6), { as: 'eve', more: { on_limit: 'wait' } });
    expect(waits.results.map(({ state }) => state)).toEqual(Array(6).fill('completed'));
    const fails = await service.run(way, many(30), { as: 'eve' });
    const refused = fails.results.filter(({ state }) => state === 'discarded');
    expect(refused.length).toBeGreaterThan(20);
    for (const { error } of refused) {
      expect(error).toMatch(/^batch item: rate limit exceeded: requests of policy limited, retry in \d+s$/);
    }
  });

  test('completion_window: what has not started when it closes is discarded as expired', async () => {
    const release = service.upstream.hold();
    const id = await service.submit(way, many(20), { more: { completion_window: '30m' } });
    await service.upstream.waitForRequests(4);
    const [row] = await service.sql(
      'select expires_at - created_at between $2::interval and $3::interval as right from batches where id = $1',
      [id, '30 minutes', '30 minutes 1 second'],
    );
    expect(row!.right).toBe(true);
    await service.sql(`update batches set expires_at = clock_timestamp() where id = $1`, [id]);
    await vi.waitUntil(async () => (await status(way, id)).counts.discarded === 16, { timeout: 20_000, interval: 50 });
    release();
    await service.finished(id);
    const { json } = await service.call(way, { path: `/v1/batches/${id}/results` });
    const errors = json.results.map(({ error }: { error?: string }) => error);
    expect(errors.filter((e: unknown) => e === 'batch item: expired')).toHaveLength(16);
    expect(service.upstream.received).toHaveLength(4);
  });

  test('case 20: counts are exact at every moment', async () => {
    const id = await service.submit(way, many(300, 'slow-3'));
    const seen = new Set<string>();
    for (;;) {
      const { counts, TotalItems, CompletedAt } = await status(way, id);
      seen.add(JSON.stringify(counts));
      const sum = Object.values(counts as Record<string, number>).reduce((a, b) => a + b, 0);
      expect(sum).toBe(TotalItems);
      if (CompletedAt !== null) break;
    }
    expect(await status(way, id)).toMatchObject({ counts: { completed: 300 } });
    expect(seen.size).toBeGreaterThan(1);
  });

  test('case 17: wake-ups that come twice, late, or for nothing run no item twice', async () => {
    const id = await service.submit(way, many(200, 'slow-2'));
    const wakes = setInterval(() => {
      for (let i = 0; i < 3; i++) service.app.wake({ kind: 'work' });
      service.app.wake({ kind: 'catalog' });
      service.app.wake({ kind: 'cancel', batchId: '00000000-0000-7000-8000-000000000000' });
    }, 1);
    await service.finished(id);
    clearInterval(wakes);
    const sent = service.upstream.received.map(({ body }) => JSON.parse(body.toString()).n);
    expect(sent.sort((a, b) => a - b)).toEqual(Array.from({ length: 200 }, (_, i) => i));
  });

  test('case 22: a cancel closes the calls under way, keeps what is finished, and is idempotent', async () => {
    service.upstream.answerWith(({ body }, response) => {
      if (JSON.parse(body.toString()).n < 4) response.end('{"choices":[]}');
    });
    const id = await service.submit(way, many(50));
    await vi.waitUntil(async () => (await status(way, id)).counts.completed === 4, { timeout: 10_000, interval: 10 });
    await service.upstream.waitForRequests(8);
    const [first, second] = await Promise.all([cancel(way, id), cancel(way, id)]);
    expect([first.status, first.text, second.status]).toEqual([200, '{"status":"cancelled"}', 200]);
    await service.upstream.waitForClosedEarly();
    await service.finished(id);
    expect((await cancel(way, id)).status).toBe(200);
    const { Status, counts, CompletedAt } = await status(way, id);
    expect([Status, counts, typeof CompletedAt]).toEqual(['cancelled', { completed: 4, cancelled: 46 }, 'string']);
    const { json } = await service.call(way, { path: `/v1/batches/${id}/results` });
    expect(json.results.slice(0, 4).map((r: { response: unknown }) => r.response)).toEqual(
      Array(4).fill({ choices: [] }),
    );
    expect(json.results[10]).toEqual({ idx: 10, state: 'cancelled' });
    const events = await service.events(id);
    expect(events).toHaveLength(50);
    expect(events.filter(({ error_kind }) => error_kind === 'cancelled')).toHaveLength(46);
  });

  test('case 23: a cancel at any moment leaves one of the two legal outcomes for each item', async () => {
    for (const [n, items] of [1, 3, 8, 40].entries()) {
      const id = await service.submit(way, many(items, n % 2 ? 'slow-1' : 'any'));
      if (n > 1) await service.upstream.waitForRequests(2);
      await cancel(way, id);
      await service.finished(id);
      const { counts, Status } = await status(way, id);
      expect(Status).toBe('cancelled');
      expect((counts.completed ?? 0) + (counts.cancelled ?? 0)).toBe(items);
      const { json } = await service.call(way, { path: `/v1/batches/${id}/results` });
      for (const result of json.results) {
        expect(Object.keys(result)).toEqual(
          result.state === 'completed' ? ['idx', 'state', 'response'] : ['idx', 'state'],
        );
      }
      expect(await service.events(id)).toHaveLength(items);
      service.upstream.forget();
    }
  });

  test('case 25: one stored response that is broken, or lost, says so; the rest is there', async () => {
    const segments = async () => {
      const kind = join(service.payloadDir, 'segment');
      const files = await readdir(kind, { recursive: true, withFileTypes: true });
      return files.filter((file) => file.isFile()).map((file) => join(file.parentPath, file.name));
    };
    for (const [harm, reason] of [
      [
        async (path: string) => {
          const bytes = await readFile(path);
          bytes[bytes.length >> 1]! ^= 1;
          await writeFile(path, bytes);
        },
        'checksum mismatch',
      ],
      [(path: string) => rm(path), 'not found'],
    ] as const) {
      service.upstream.answerWith((request, response) => {
        const { n } = JSON.parse(request.body.toString());
        if (n === 0) response.end('{"choices":[],"n":0}');
        else held.push(() => response.end('{"choices":[],"n":1}'));
      });
      const held: (() => void)[] = [];
      const before = new Set(await segments());
      const id = await service.submit(way, many(2));
      await vi.waitUntil(async () => (await status(way, id)).counts.completed === 1, { timeout: 9000, interval: 10 });
      const [fresh] = (await segments()).filter((path) => !before.has(path));
      await harm(fresh!);
      await vi.waitUntil(() => held.length === 1, { timeout: 9000, interval: 5 });
      held[0]!();
      await service.finished(id);
      const { status: code, json } = await service.call(way, { path: `/v1/batches/${id}/results` });
      expect([code, json.results]).toEqual([
        200,
        [
          { idx: 0, state: 'completed', error: `batch item: load output: ${reason}` },
          { idx: 1, state: 'completed', response: { choices: [], n: 1 } },
        ],
      ]);
    }
  });

  test('case 26: another’s batch is an unknown one on every route', async () => {
    const { id } = await service.run(way, many(1));
    const unknown = '01890000-0000-7000-8000-000000000000';
    for (const [method, path] of [
      ['GET', ''],
      ['GET', '/results'],
      ['POST', '/cancel'],
      ['DELETE', ''],
    ] as const) {
      const ask = (one: string) => service.call(way, { method, path: `/v1/batches/${one}${path}`, as: 'bob' });
      const [theirs, none] = [await ask(id), await ask(unknown)];
      expect([theirs.status, theirs.text]).toEqual([404, none.text]);
      expect(theirs.json.error.code).toBe('not_found');
    }
    expect((await status(way, id)).Status).toBe('queued');
  });

  test('case 28: usage is recorded once, with the outcome, however often one looks', async () => {
    const { id } = await service.run(way, many(5, 'priced'));
    for (let i = 0; i < 3; i++) {
      await status(way, id);
      await service.call(way, { path: `/v1/batches/${id}/results` });
    }
    const events = await service.events(id);
    expect(events).toHaveLength(5);
    // 12 input at 2.5 and 9 output at 10 USD a million.
    for (const event of events) expect(event).toMatchObject({ cost: '120000', tokens_input: 12, tokens_output: 9 });
  });

  test('case 29: an odd usage object leaves its own item unpriced, and costs the others nothing', async () => {
    const usages = [
      '{"prompt_tokens":10,"completion_tokens":1}',
      '{"prompt_tokens":1e300,"completion_tokens":1}',
      '{"prompt_tokens":"10","completion_tokens":1}',
      '{"prompt_tokens":-5}',
      'null',
      '[]',
      '{"prompt_tokens":9007199254740993,"completion_tokens":1}',
      '{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}',
    ];
    service.upstream.answerWith(({ body }, response) => {
      response.end(`{"choices":[],"usage":${usages[JSON.parse(body.toString()).n]}}`);
    });
    const { id, results } = await service.run(way, many(usages.length, 'priced'));
    expect(results.map(({ state }) => state)).toEqual(usages.map(() => 'completed'));
    const costs = (await service.events(id)).map(({ cost }) => cost);
    expect(costs).toEqual(['35000', ...Array(usages.length - 1).fill(null)]);
  });

  test('case 31: a submit sent again with its Idempotency-Key starts nothing twice', async () => {
    const headers = { 'idempotency-key': `once-${way}` };
    const ids = await Promise.all(Array.from({ length: 5 }, () => service.submit(way, many(3), { headers })));
    expect(new Set(ids).size).toBe(1);
    await service.finished(ids[0]!);
    await service.submit(way, many(3), { headers });
    expect(service.upstream.received).toHaveLength(3);
    const other = await service.call(way, {
      method: 'POST',
      path: '/v1/batches',
      headers,
      body: '{"shape":"openai","requests":[{"model":"any"}]}',
    });
    expect([other.status, other.json.error.code]).toEqual([409, 'idempotency_conflict']);
  });

  test('case 40: without room for payloads a submit is 503, results stay readable, and work goes on later', async () => {
    const done = await service.run(way, many(2));
    const release = service.upstream.hold();
    const id = await service.submit(way, many(12));
    await service.upstream.waitForRequests(4);
    // A file where a directory must be: every write below it fails, as on a full disk.
    const moved = ['input', 'segment', 'result'];
    for (const kind of moved) {
      await rename(join(service.payloadDir, kind), join(service.payloadDir, `.${kind}`));
      await writeFile(join(service.payloadDir, kind), '');
    }
    try {
      release();
      const refused = await service.call(way, {
        method: 'POST',
        path: '/v1/batches',
        body: '{"shape":"openai","requests":[1]}',
      });
      expect([refused.status, refused.json.error.code]).toEqual([503, 'storage_full']);
      await vi.waitUntil(() => service.logged().includes('group commit waits for the payload store'), {
        timeout: 9000,
        interval: 10,
      });
      expect((await status(way, id)).CompletedAt).toBeNull();
    } finally {
      for (const kind of moved) {
        await rm(join(service.payloadDir, kind));
        await rename(join(service.payloadDir, `.${kind}`), join(service.payloadDir, kind));
      }
    }
    await service.finished(id);
    expect((await status(way, id)).counts).toEqual({ completed: 12 });
    expect(service.upstream.received).toHaveLength(12 + 2);
    const again = await service.call(way, { path: `/v1/batches/${done.id}/results` });
    expect(again.json.results).toEqual(done.results);
  });
});

test('case 15: a database that drops every connection again and again loses nothing and doubles nothing', async () => {
  const id = await service.submit('node', many(300, 'slow-5'));
  for (let i = 0; i < 5; i++) {
    await service.upstream.waitForRequests(40 * (i + 1));
    await service.sql(
      `select pg_terminate_backend(pid) from pg_stat_activity
      where datname = current_database() and application_name like 'relay-batch%'`,
    );
  }
  await service.finished(id);
  expect((await status('node', id)).counts).toEqual({ completed: 300 });
  expect(await service.events(id)).toHaveLength(300);
  const sent = service.upstream.received.map(({ body }) => JSON.parse(body.toString()).n);
  expect(new Set(sent).size).toBe(300);
  expect(sent).toHaveLength(300);
});

test('case 30: no prompt, no answer, no key and no upstream text is in any log, at any level', async () => {
  service.upstream.answerWith(({ model }, response) => {
    if (model === 'any') response.end('{"choices":[],"text":"SECRET-ANSWER"}');
    else response.writeHead(400).end('{"error":{"message":"SECRET-UPSTREAM-TEXT"}}');
  });
  const prompt = (model: string) => ({ model, messages: [{ content: 'SECRET-PROMPT' }] });
  for (const way of WAYS) {
    const items = ['any', 'status-400', 'keyed', 'lost', 'none'].map(prompt);
    await service.run(way, [...items, '"SECRET-PROMPT"', '{"model":4,"x":"SECRET-PROMPT"}']);
    await service.call(way, {
      method: 'POST',
      path: '/v1/batches',
      body: '{"shape":"openai","requests":[{"x":"SECRET-PROMPT"}',
    });
    await service.call(way, { path: '/v1/batches/x', as: null, headers: { authorization: 'Bearer sk-wr-SECRET-KEY' } });
  }
  expect(service.logged()).not.toMatch(/SECRET|sk-host|sk-wr-/);
  for (const name of ['ann', 'bob', 'eve']) expect(service.logged()).not.toContain(plaintextOf(name));
  expect(service.logged()).not.toBe('');
  const texts = await service.sql(
    `select string_agg(coalesce(error, ''), ' ') || (select string_agg(coalesce(error_message, ''), ' ') from usage_events) as t
    from batch_items`,
  );
  expect(String(texts[0]!.t)).not.toMatch(/SECRET|sk-host|sk-wr-/);
});
