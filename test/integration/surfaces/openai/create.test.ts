import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidOfFileId } from '../../../../lib/surfaces/files/file-object.ts';
import { deleteFile } from '../../../../lib/surfaces/files/stored-files.sql.ts';
import { WAYS } from '../../../support/native-api.ts';
import { createOpenaiApi, type OpenaiApi, ownerOf, uuidOf } from '../../../support/openai-api.ts';

let api: OpenaiApi;
beforeAll(async () => {
  api = await createOpenaiApi();
});
afterAll(() => api.close());

const FINE = { endpoint: '/v1/chat/completions', completion_window: '24h' };
const rows = (id: string) => api.sql('select * from openai_batches where id = $1::uuid', [uuidOf(id)]);

describe.each(WAYS)('a create by %s', (way) => {
  const post = (
    body: object | string,
    more: { as?: string | null; headers?: Record<string, string>; path?: string } = {},
  ) =>
    api.call(way, {
      method: 'POST',
      path: '/v1/batches',
      body: typeof body === 'string' ? body : JSON.stringify(body),
      ...more,
    });

  test('answers the batch as validating and wakes the validator', async () => {
    const before = api.woken();
    const input_file_id = await api.file('x');
    const metadata = { z: '1', a: '\u0000\ud800' };
    const output_expires_after = { anchor: 'created_at', seconds: 3600 };
    const answer = await post({ ...FINE, input_file_id, metadata, output_expires_after });
    expect(answer.status).toBe(200);
    expect(answer.headers.get('x-request-id')).toBeTruthy();
    expect(answer.headers.get('idempotency-replayed')).toBeNull();
    expect(answer.json).toMatchObject({
      id: expect.stringMatching(/^batch_[0-9a-f]{32}$/),
      status: 'validating',
      input_file_id,
      metadata,
      errors: null,
      request_counts: { total: 0, completed: 0, failed: 0 },
    });
    expect(Object.keys(answer.json.metadata)).toEqual(['z', 'a']);
    expect(answer.json.expires_at).toBe(answer.json.created_at + 86_400);
    expect(api.woken()).toBe(before + 1);
    const [row] = await rows(answer.json.id);
    expect(row).toMatchObject({ owner: ownerOf('ann'), output_expires_s: 3600 });
    expect(row!.attribution).toMatchObject({ owner: ownerOf('ann'), policy: 'p', credentialKind: 'key' });
  });

  test('refuses a file that is unknown, malformed or of another alike', async () => {
    const foreign = await api.file('x', { as: 'bob' });
    const unknown = `file-${'0'.repeat(32)}`;
    for (const input_file_id of [foreign, unknown, 'file-1', 'x']) {
      const answer = await post({ ...FINE, input_file_id });
      expect(answer.status).toBe(404);
      expect(answer.json).toEqual({
        error: {
          type: 'invalid_request_error',
          message: `No such File object: ${input_file_id}`,
          code: 'not_found',
          param: 'input_file_id',
        },
      });
    }
  });

  test('is told from a native submit, however long its metadata are and are escaped', async () => {
    const metadata = Object.fromEntries(
      Array.from({ length: 16 }, (_, i) => [`${i}`.padStart(64, '\u{1f600}'), '\u{1f600}'.repeat(512)]),
    );
    const plain = JSON.stringify({ ...FINE, input_file_id: await api.file('x'), metadata });
    const body = plain.replace(/[\ud800-\udfff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16)}`);
    expect(body.length).toBeGreaterThan(100_000);
    const answer = await api.call(way, { method: 'POST', path: '/shared/v1/batches', body });
    expect([answer.status, answer.json.metadata]).toEqual([200, metadata]);
  });

  test('is told from a native submit when it is larger than it may be, too', async () => {
    const input_file_id = await api.file('x');
    const create = (more: object) =>
      api.call(way, {
        method: 'POST',
        path: '/shared/v1/batches',
        body: JSON.stringify({ ...more, ...FINE, input_file_id }),
      });
    const long = await create({ metadata: { key: 'x'.repeat(500_000) } });
    expect([long.status, long.json.error.param]).toEqual([400, 'metadata.key']);
    expect((await create({ unknown: 'x'.repeat(500_000) })).json.object).toBe('batch');
    const both = await create({ requests: ['x'.repeat(500_000)] });
    expect([both.status, both.json.error.message]).toEqual([400, expect.stringContaining('cannot stand beside')]);
  });

  test('refuses a file that has expired', async () => {
    const input_file_id = await api.file('x');
    await api.sql(`update files set expires_at = clock_timestamp() - interval '1 s' where id = $1::uuid`, [
      uuidOfFileId(input_file_id),
    ]);
    expect((await post({ ...FINE, input_file_id })).status).toBe(404);
  });

  test('refuses a file of another purpose', async () => {
    const input_file_id = await api.file('x', { purpose: 'batch_output' });
    const { status, json } = await post({ ...FINE, input_file_id });
    expect({ status, error: json.error }).toMatchObject({
      status: 400,
      error: { code: 'invalid_value', param: 'input_file_id' },
    });
  });

  test('refuses bad fields, too large and compressed bodies, with nothing made', async () => {
    const count = async () => (await api.sql('select count(*) as n from openai_batches'))[0]!.n;
    const before = await count();
    const input_file_id = await api.file('x');
    const missing = await post({ ...FINE });
    expect([missing.status, missing.json.error.code, missing.json.error.param]).toEqual([
      400,
      'missing_required_parameter',
      'input_file_id',
    ]);
    const window = await post({ ...FINE, input_file_id, completion_window: '1h' });
    expect([window.status, window.json.error.param]).toEqual([400, 'completion_window']);
    const large = await post({ ...FINE, input_file_id, x: 'x'.repeat(1024 * 1024) });
    expect([large.status, large.json.error.code]).toEqual([400, 'body_too_large']);
    const shared = await post({ ...FINE, input_file_id, x: 'x'.repeat(1024 * 1024) }, { path: '/shared/v1/batches' });
    expect([shared.status, shared.json.error.code]).toEqual([400, 'body_too_large']);
    expect((await post('{"a"')).json.error.code).toBe('invalid_json');
    expect((await post({ ...FINE, input_file_id }, { headers: { 'content-encoding': 'gzip' } })).status).toBe(415);
    expect(await count()).toBe(before);
  });

  test('is for callers with a policy that is in force', async () => {
    const body = { ...FINE, input_file_id: await api.file('x') };
    const codes = [];
    for (const as of [null, 'gone', 'none', 'off']) {
      const { status, json } = await post(body, { as });
      codes.push([status, json.error.code]);
    }
    expect(codes).toEqual([
      [401, 'missing_api_key'],
      [401, 'api_key_revoked'],
      [403, 'no_policy'],
      [403, 'policy_disabled'],
    ]);
  });

  test('answers the first batch again for its Idempotency-Key, as it is by then, though the file is gone', async () => {
    const input_file_id = await api.file(
      '{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m"}}',
    );
    const body = { ...FINE, input_file_id };
    const headers = { 'idempotency-key': `key-${way}` };
    const first = await post(body, { headers });
    await api.validator.run();
    const uuid = uuidOfFileId(input_file_id)!;
    await deleteFile(api.native.database.db, { owner: ownerOf('ann'), id: uuid });
    const woken = api.woken();
    const again = await post(body, { headers });
    expect(again.status).toBe(200);
    expect(again.headers.get('idempotency-replayed')).toBe('true');
    expect(again.json).toMatchObject({ id: first.json.id, status: 'in_progress' });
    expect(api.woken()).toBe(woken);
    const other = await post({ ...body, metadata: {} }, { headers });
    expect([other.status, other.json.error.code]).toEqual([409, 'idempotency_conflict']);
    // The same key of another owner is another key.
    const foreign = await post({ ...FINE, input_file_id: await api.file('x', { as: 'bob' }) }, { headers, as: 'bob' });
    expect([foreign.status, foreign.headers.get('idempotency-replayed')]).toEqual([200, null]);
  });

  test('makes one batch of creates of one key at the same time', async () => {
    const body = { ...FINE, input_file_id: await api.file('x') };
    const headers = { 'idempotency-key': `race-${way}` };
    const answers = await Promise.all(Array.from({ length: 6 }, () => post(body, { headers })));
    expect(new Set(answers.map(({ json }) => json.id)).size).toBe(1);
    expect(answers.filter(({ headers: h }) => h.get('idempotency-replayed') === null)).toHaveLength(1);
  });

  test('leaves a refused Idempotency-Key free', async () => {
    const headers = { 'idempotency-key': `free-${way}` };
    expect((await post({ ...FINE, input_file_id: 'file-1' }, { headers })).status).toBe(404);
    expect((await post({ ...FINE, input_file_id: await api.file('x') }, { headers })).status).toBe(200);
  });
});

describe.each(WAYS)('a look-up by %s', (way) => {
  test('finds no batch of another and no unknown one, with the same answer', async () => {
    const { id } = await api.create(way, await api.file('x'));
    const ids = [id, `batch_${'0'.repeat(32)}`, uuidOf(id), 'batch_x', 'msgbatch_01a'];
    for (const one of ids) {
      for (const call of [{ path: `/v1/batches/${one}` }, { method: 'POST', path: `/v1/batches/${one}/cancel` }]) {
        const answer = await api.call(way, { ...call, as: 'bob' });
        expect(answer.status).toBe(404);
        expect(answer.json.error).toEqual({
          type: 'invalid_request_error',
          message: `No batch found with id '${one}'.`,
          code: 'not_found',
          param: 'id',
        });
      }
    }
    expect((await api.get(id)).status).toBe('validating');
  });

  test('asks for a credential that still stands', async () => {
    const { id } = await api.create(way, await api.file('x'));
    for (const as of ['gone', null]) {
      expect((await api.call(way, { path: `/v1/batches/${id}`, as })).status).toBe(401);
      expect((await api.call(way, { path: '/v1/batches', as })).status).toBe(401);
    }
  });
});

describe.each(WAYS)('a list by %s', (way) => {
  test('pages through the batches of its owner, the newest first, though they tie by the second', async () => {
    const as = way === 'node' ? 'bob' : 'ann';
    await api.sql('delete from openai_batches where owner = $1::text', [ownerOf(as)]);
    const get = (query: string) => api.call(way, { path: `/v1/batches${query}`, as });
    expect((await get('')).json).toEqual({ object: 'list', data: [], first_id: null, last_id: null, has_more: false });
    const made: string[] = [];
    const file = await api.file('x', { as });
    for (let i = 0; i < 5; i++) {
      const body = JSON.stringify({ ...FINE, input_file_id: file });
      made.unshift((await api.call(way, { method: 'POST', path: '/v1/batches', body, as })).json.id);
    }
    // Ids do not decide: the clocks of two replicas may differ.
    const all = await get('');
    expect(all.json.data.map(({ id }: { id: string }) => id)).toEqual(made);
    expect(all.json).toMatchObject({ object: 'list', first_id: made[0], last_id: made[4], has_more: false });
    const page = await get('?limit=2');
    expect(page.json).toMatchObject({ first_id: made[0], last_id: made[1], has_more: true });
    const next = await get(`?limit=2&after=${made[1]}`);
    expect(next.json).toMatchObject({ first_id: made[2], last_id: made[3], has_more: true });
    const last = await get(`?limit=2&after=${made[3]}`);
    expect(last.json).toMatchObject({ first_id: made[4], last_id: made[4], has_more: false });
    expect((await get(`?after=${made[4]}`)).json).toMatchObject({ data: [], has_more: false });
    await api.sql('update openai_batches set created_at = $2::timestamptz where owner = $1::text', [
      ownerOf(as),
      '2026-01-01T00:00:00Z',
    ]);
    const ties = await get(`?limit=3&after=${made[0]}`);
    expect(ties.json.data.map(({ id }: { id: string }) => id)).toEqual(made.slice(1, 4));
  });

  test('refuses a limit that is none, and an after that is not a batch of its owner', async () => {
    for (const limit of ['0', '101', 'abc', '']) {
      const { status, json } = await api.call(way, { path: `/v1/batches?limit=${limit}` });
      expect([status, json.error.param]).toEqual([400, 'limit']);
    }
    const { id } = await api.create(way, await api.file('x'));
    for (const after of [id, 'batch_x', `batch_${'0'.repeat(32)}`]) {
      const { status, json } = await api.call(way, { path: `/v1/batches?after=${after}`, as: 'bob' });
      expect([status, json.error.param]).toEqual([404, 'after']);
    }
  });
});
