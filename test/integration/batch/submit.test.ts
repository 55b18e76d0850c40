import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createBodyBudget } from '../../../lib/base/body-budget.ts';
import { isUuid, uuidv7Time } from '../../../lib/base/clock.ts';
import type { Database } from '../../../lib/db/database.ts';
import { StorageFull } from '../../../lib/payloads/payload-store.ts';
import { createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';

const MIB = 1024 * 1024;
const LIMIT = 64 * 1024;
let api: NativeApi;
let failWrite: Error | null = null;
let cut: 'before' | 'after' | null = null;

beforeAll(async () => {
  api = await createNativeApi((app) => ({
    maxItems: 5,
    maxRequestBytes: LIMIT,
    payloads: {
      ...app.payloads,
      write: (ref, pieces) => (failWrite ? Promise.reject(failWrite) : app.payloads.write(ref, pieces)),
    },
    db: cutting(app.db),
  }));
});
afterAll(() => api.close());
beforeEach(() => {
  failWrite = null;
  cut = null;
  api.wakes.length = 0;
});

/** The connection breaks around COMMIT, and its answer with it. */
function cutting(db: Database): Database {
  const lost = () => Object.assign(new Error('Connection terminated unexpectedly'));
  return {
    ...db,
    async transaction(work) {
      const result = await db.transaction(async (tx) => {
        const made = await work(tx);
        if (cut === 'before') throw lost();
        return made;
      });
      if (cut === 'after') throw lost();
      return result;
    },
  };
}

const ok = (n = 2) => JSON.stringify({ shape: 'openai', requests: Array.from({ length: n }, (_, i) => ({ i })) });
const rows = (text: string, values: unknown[] = []) => api.sql(text, values);
const inputs = async () => {
  let n = 0;
  for await (const _ of api.payloads.list('input', Date.now() + 3_600_000)) n++;
  return n;
};

describe.each(WAYS)('over %s', (way) => {
  const submit = (body: string | Buffer, headers: Record<string, string> = {}, as?: string | null) =>
    api.call(way, { method: 'POST', path: '/v1/batches', body, headers, ...(as === undefined ? {} : { as }) });

  test('answers 202 with a UUIDv7, wakes the workers and keeps the very bytes', async () => {
    const body = Buffer.from('\ufeff { "requests" : [ {"b":1, "a":2} , 1e400 ], "shape":"anthropic" } ');
    const answer = await submit(body, { 'anthropic-version': '2023-06-01', 'anthropic-beta': 'a,b' });

    expect(answer.status).toBe(202);
    expect(answer.headers.get('content-type')).toBe('application/json');
    const { id } = answer.json;
    expect(answer.text).toBe(`{"id":"${id}","status":"queued","total_items":2}`);
    expect(isUuid(id) && id[14] === '7' && Math.abs(uuidv7Time(id) - Date.now()) < 60_000).toBe(true);
    expect(api.wakes).toEqual([{ kind: 'work' }]);

    const [batch] = await rows('select * from batches where id = $1', [id]);
    expect(batch).toMatchObject({
      shape: 'anthropic',
      surface: 'relay',
      policy: 'p',
      policy_id: 'policy-p',
      open_items: 2,
      anthropic_version: '2023-06-01',
      anthropic_beta: 'a,b',
      max_attempts: 1,
      on_limit: 'fail',
      expires_at: null,
    });
    const items = await rows('select * from batch_items where batch_id = $1 order by idx', [id]);
    const stored = await Promise.all(
      items.map(async (item) =>
        String(
          await api.payloads.read(
            { kind: 'input', id: batch!.input_id as string },
            item.input_offset as number,
            item.input_length as number,
          ),
        ),
      ),
    );
    expect(stored).toEqual(['{"b":1, "a":2}', '1e400']);
    expect(await rows('select next_idx, total_items from batch_cursors where batch_id = $1', [id])).toEqual([
      { next_idx: 0, total_items: 2 },
    ]);
    expect(await rows('select owner, policy from usage_attributions where batch_id = $1', [id])).toEqual([
      { owner: batch!.owner, policy: 'p' },
    ]);
  });

  test('takes the options of a batch', async () => {
    const answer = await submit(
      '{"shape":"openai","requests":[null],"max_attempts":3,"on_limit":"wait","completion_window":"24h","x":1}',
    );
    const [batch] = await rows(
      `select max_attempts, on_limit, extract(epoch from expires_at - created_at)::int as seconds from batches where id = $1`,
      [answer.json.id],
    );
    expect(batch).toEqual({ max_attempts: 3, on_limit: 'wait', seconds: 86_400 });
  });

  test.each([
    ['not JSON', '{"shape":', 'invalid_json', null],
    ['an empty body', '', 'invalid_json', null],
    ['not UTF-8', Buffer.from('{"shape":"\xff"}', 'latin1'), 'invalid_json', null],
    ['no object', '[]', 'invalid_value', null],
    ['nothing at all', '{}', 'missing_required_parameter', 'shape'],
    ['a missing shape', '{"requests":[1]}', 'missing_required_parameter', 'shape'],
    ['an unknown shape', '{"shape":"canonical","requests":[1]}', 'invalid_value', 'shape'],
    ['a shape of another type', '{"shape":["openai"],"requests":[1]}', 'invalid_value', 'shape'],
    ['missing requests', '{"shape":"openai"}', 'missing_required_parameter', 'requests'],
    ['requests that are no array', '{"shape":"openai","requests":{"0":1}}', 'invalid_value', 'requests'],
    ['empty requests', '{"shape":"openai","requests":[]}', 'invalid_value', 'requests'],
    ['too many attempts', '{"shape":"openai","requests":[1],"max_attempts":11}', 'invalid_value', 'max_attempts'],
    ['half an attempt', '{"shape":"openai","requests":[1],"max_attempts":1.5}', 'invalid_value', 'max_attempts'],
    ['an unknown on_limit', '{"shape":"openai","requests":[1],"on_limit":"queue"}', 'invalid_value', 'on_limit'],
    [
      'a short window',
      '{"shape":"openai","requests":[1],"completion_window":"29m"}',
      'invalid_value',
      'completion_window',
    ],
    [
      'a long window',
      '{"shape":"openai","requests":[1],"completion_window":"8d"}',
      'invalid_value',
      'completion_window',
    ],
    [
      'a window without unit',
      '{"shape":"openai","requests":[1],"completion_window":3600}',
      'invalid_value',
      'completion_window',
    ],
    ['both forms', '{"shape":"openai","requests":[1],"endpoint":"/v1/x"}', 'invalid_value', 'endpoint'],
    ['the other form', '{"input_file_id":"file-1"}', 'invalid_value', 'input_file_id'],
  ])('refuses %s with 400', async (_, body, code, param) => {
    const before = await rows('select count(*) from batches');
    const answer = await submit(body);
    expect(answer.status).toBe(400);
    expect(Object.keys(answer.json.error)).toEqual(['type', 'message', 'code', 'param']);
    expect(answer.json.error).toMatchObject({ type: 'invalid_request_error', code, param });
    expect(await rows('select count(*) from batches')).toEqual(before);
  });

  test('names the limit and the number sent when there are too many items', async () => {
    const answer = await submit(ok(6));
    expect(answer.status).toBe(400);
    expect(answer.json.error).toEqual({
      type: 'invalid_request_error',
      message: 'too many items: 6 sent, the limit is 5',
      code: 'too_many_items',
      param: 'requests',
    });
    expect((await submit(ok(5))).status).toBe(202);
  });

  test('names the limit and the size sent when the body is too large', async () => {
    const pad = LIMIT - Buffer.byteLength(ok(1));
    expect((await submit(ok(1) + ' '.repeat(pad))).status).toBe(202);
    const answer = await submit(ok(1) + ' '.repeat(pad + 1));
    expect(answer.status).toBe(400);
    expect(answer.json.error).toMatchObject({
      code: 'body_too_large',
      message: `request body too large: ${LIMIT + 1} bytes sent, the limit is ${LIMIT} bytes`,
    });
  });

  test('judges items only when they run: null, arrays, strings and a nested requests key are items', async () => {
    const answer = await submit('{"shape":"openai","requests":[null,[1],"text",{"requests":[1,2,3]}]}');
    expect(answer.json.total_items).toBe(4);
  });

  test.each([
    [null, 401, 'missing_api_key'],
    ['nobody', 401, 'invalid_api_key'],
    ['gone', 401, 'api_key_revoked'],
    ['none', 403, 'no_policy'],
    ['off', 403, 'policy_disabled'],
  ])('refuses the credential %s with %i', async (as, status, code) => {
    const answer = await submit('not even JSON', {}, as);
    expect([answer.status, answer.json.error.code]).toEqual([status, code]);
  });

  test('refuses a compressed body with 415, and takes identity', async () => {
    const answer = await submit(ok(), { 'content-encoding': 'gzip' });
    expect([answer.status, answer.json.error.code]).toEqual([415, 'unsupported_media_type']);
    expect((await submit(ok(), { 'content-encoding': 'identity' })).status).toBe(202);
  });

  test('refuses a recorded header that is not printable ASCII', async () => {
    const answer = await submit(ok(), { 'anthropic-beta': 'caf\u00e9' });
    expect([answer.status, answer.json.error.param]).toEqual([400, 'anthropic-beta']);
  });

  test('answers a repeated Idempotency-Key with the first batch, and another body with 409', async () => {
    const headers = { 'idempotency-key': `${way} 1` };
    const first = await submit(ok(), headers);
    const second = await submit(ok(), headers);
    expect(second.status).toBe(202);
    expect(second.text).toBe(first.text);
    expect(first.headers.get('idempotency-replayed')).toBe(null);
    expect(second.headers.get('idempotency-replayed')).toBe('true');
    expect(api.wakes).toHaveLength(1);

    const other = await submit(ok(3), headers);
    expect([other.status, other.json.error.code]).toEqual([409, 'idempotency_conflict']);
    const another = await submit(ok(), headers, 'bob');
    expect(another.headers.get('idempotency-replayed')).toBe(null);
    expect(another.json.id).not.toBe(first.json.id);
  });

  test('forgets an Idempotency-Key after 24 hours', async () => {
    const headers = { 'idempotency-key': `${way} 2` };
    const first = await submit(ok(), headers);
    await rows("update idempotency_keys set created_at = created_at - interval '24 hours' where key = $1", [
      `${way} 2`,
    ]);
    const second = await submit(ok(3), headers);
    expect([second.status, second.json.total_items]).toEqual([202, 3]);
    expect(second.json.id).not.toBe(first.json.id);
  });

  test('does not remember an error under an Idempotency-Key', async () => {
    const headers = { 'idempotency-key': `${way} 3` };
    expect((await submit('{}', headers)).status).toBe(400);
    expect((await submit(ok(), headers)).status).toBe(202);
  });

  test.each(['', 'x'.repeat(256), 'caf\u00e9'])('refuses the Idempotency-Key "%s"', async (key) => {
    const answer = await submit(ok(), { 'idempotency-key': key });
    expect([answer.status, answer.json.error.param]).toEqual([400, 'Idempotency-Key']);
  });

  test('makes one batch of the same key sent ten times at once', async () => {
    const before = await inputs();
    const headers = { 'idempotency-key': `${way} 4` };
    const answers = await Promise.all(Array.from({ length: 10 }, () => submit(ok(), headers)));
    expect(new Set(answers.map((a) => a.text)).size).toBe(1);
    expect(answers.map((a) => a.headers.get('idempotency-replayed')).filter((h) => h === null)).toHaveLength(1);
    expect(await inputs()).toBe(before + 1);
  });

  test('says 503 storage_full when there is no room, and leaves nothing visible', async () => {
    const before = await rows('select count(*) from batches');
    failWrite = new StorageFull('no room under /secret/path');
    const answer = await submit(ok());
    expect([answer.status, answer.json.error.code]).toEqual([503, 'storage_full']);
    expect(answer.headers.get('retry-after')).toBe('5');
    expect(answer.text).not.toContain('secret');
    expect(await rows('select count(*) from batches')).toEqual(before);
  });

  test('answers 202 when only the answer to COMMIT was lost', async () => {
    cut = 'after';
    const answer = await submit(ok());
    expect(answer.status).toBe(202);
    expect(await rows('select open_items from batches where id = $1', [answer.json.id])).toEqual([{ open_items: 2 }]);
    expect(api.wakes).toHaveLength(1);
  });

  test('answers 503 and makes no batch when the connection breaks before COMMIT', async () => {
    const before = await rows('select count(*) from batches');
    cut = 'before';
    const answer = await submit(ok());
    expect([answer.status, answer.json.error.code]).toEqual([503, 'not_ready']);
    expect(await rows('select count(*) from batches')).toEqual(before);
    expect(api.wakes).toHaveLength(0);
  });
});

test('counts pending items of an owner under its limit, also for submits at once', async () => {
  const limited = await createNativeApi(() => ({ maxPendingItemsPerOwner: 5 }));
  try {
    const submit = (n: number, as = 'ann', headers = {}) =>
      limited.call('node', { method: 'POST', path: '/v1/batches', body: ok(n), as, headers });
    const answers = await Promise.all([submit(2), submit(2), submit(2), submit(2)]);
    expect(answers.map((a) => a.status).sort()).toEqual([202, 202, 429, 429]);
    const refused = await submit(2);
    expect(refused.json.error).toEqual({
      type: 'invalid_request_error',
      message: 'too many pending items: 4 pending and 2 sent, the limit is 5',
      code: 'too_many_pending',
      param: 'requests',
    });
    expect((await submit(1, 'ann', { 'idempotency-key': 'last' })).status).toBe(202);
    expect((await submit(1, 'ann', { 'idempotency-key': 'last' })).headers.get('idempotency-replayed')).toBe('true');
    expect((await submit(5, 'bob')).status).toBe(202);
  } finally {
    await limited.close();
  }
});

test('submits also when the workers cannot be woken', async () => {
  const mute = await createNativeApi(() => ({ queue: { send: () => Promise.reject(new Error('queue is away')) } }));
  try {
    expect((await mute.call('node', { method: 'POST', path: '/v1/batches', body: ok() })).status).toBe(202);
  } finally {
    await mute.close();
  }
});

test('counts the items of a submit in the memory of bodies', async () => {
  const bodies = createBodyBudget(4 * MIB);
  const small = await createNativeApi(() => ({ maxItems: 50_000, bodies }));
  const submit = (requests: string) =>
    small.call('node', { method: 'POST', path: '/v1/batches', body: `{"shape":"openai","requests":[${requests}]}` });
  const text = `${'1,'.repeat(49_999)}1`;
  const many = await submit(text);
  expect([many.status, many.json.error.code]).toEqual([503, 'overloaded']);
  expect(many.headers.get('retry-after')).toBe('5');
  expect((await submit(`"${'x'.repeat(text.length)}"`)).status).toBe(202);
  expect(bodies.held()).toBe(0);
  await small.close();
});
