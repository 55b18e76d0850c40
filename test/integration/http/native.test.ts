import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { NotReady } from '../../../lib/app/readiness.ts';
import { createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';

let api: NativeApi;
let unready: NotReady | null = null;

beforeAll(async () => {
  api = await createNativeApi(() => ({ notReady: () => unready }));
});
afterAll(() => api.close());
beforeEach(() => {
  unready = null;
});

const SUBMIT = { method: 'POST', path: '/v1/batches', body: '{"shape":"openai","requests":[1]}' };

describe.each(WAYS)('over %s', (way) => {
  test('tells of its health without a credential', async () => {
    const healthy = await api.call(way, { path: '/healthz', as: null });
    expect([healthy.status, healthy.text]).toEqual([200, '{"status":"ok"}']);
    unready = { code: 'not_ready', reason: 'payload directory is not shared' };
    const answer = await api.call(way, { path: '/healthz', as: null });
    expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, '5']);
    expect(answer.json.error).toEqual({
      type: 'api_error',
      message: 'payload directory is not shared',
      code: 'not_ready',
      param: null,
    });
  });

  test.each(['not_ready', 'schema_outdated'] as const)(
    'answers 503 %s with Retry-After, before it looks at the key',
    async (code) => {
      unready = { code, reason: 'waiting for the database' };
      for (const call of [SUBMIT, { path: '/v1/batches?surface=relay', as: 'nobody' }]) {
        const answer = await api.call(way, call);
        expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, '5']);
        expect(answer.json.error).toMatchObject({ type: 'api_error', code });
        expect(answer.text).not.toContain('waiting');
      }
    },
  );

  test('puts a request id on every answer, good or bad', async () => {
    for (const call of [SUBMIT, { path: '/v1/batches/x' }, { path: '/healthz' }, { path: '/v1/batches', as: null }]) {
      const own = await api.call(way, { ...call, headers: { 'x-request-id': 'mine' } });
      expect([own.headers.get('x-relay-request-id'), own.headers.get('x-request-id')]).toEqual(['mine', 'mine']);
      const made = await api.call(way, call);
      expect(made.headers.get('x-relay-request-id')).toMatch(/^[0-9a-f-]{36}$/);
    }
  });

  test('takes the credential from X-WR-API-Key, Bearer, x-api-key and api-key, in this order', async () => {
    const key = (name: string) => `sk-wr-${name.padEnd(64, '0')}`;
    const path = '/v1/batches?surface=relay';
    const headers = {
      'x-wr-api-key': key('ann'),
      authorization: `Bearer ${key('gone')}`,
      'x-api-key': key('nobody'),
      'api-key': key('ann'),
    };
    expect((await api.call(way, { path, as: null, headers })).status).toBe(200);
    const { 'x-wr-api-key': _, ...rest } = headers;
    expect((await api.call(way, { path, as: null, headers: rest })).json.error.code).toBe('api_key_revoked');
    const last = { 'x-api-key': key('nobody') };
    expect((await api.call(way, { path, as: null, headers: last })).json.error.code).toBe('invalid_api_key');
    expect((await api.call(way, { path, as: null, headers: { 'api-key': key('ann') } })).status).toBe(200);
  });

  test('tells what a body needs that has nothing', async () => {
    const { status, json } = await api.call(way, { method: 'POST', path: '/v1/batches', body: '{}' });
    expect([status, json.error.code]).toEqual([400, 'missing_required_parameter']);
    for (const name of ['shape', 'requests', 'input_file_id', 'endpoint']) expect(json.error.message).toContain(name);
  });

  test.each(['filename', 'mime_type', 'purpose'])("says that uploads are not OpenAI's: %s", async (name) => {
    const body = JSON.stringify({ bytes: 10, [name]: 'x' });
    const { status, json } = await api.call(way, { method: 'POST', path: '/v1/uploads', body });
    expect([status, json.error.message]).toEqual([
      400,
      "this is not OpenAI's Uploads API; send the file to POST /v1/files",
    ]);
  });

  test('answers every error in the form of Anthropic to a client that sends its version', async () => {
    const headers = { 'anthropic-version': '2023-06-01' };
    const { status, json } = await api.call(way, { path: '/v1/batches/x', headers });
    expect([status, json.type, json.error.type]).toEqual([404, 'error', 'not_found_error']);
  });

  test('answers JSON with its content type', async () => {
    for (const call of [SUBMIT, { path: '/v1/batches?surface=relay' }, { path: '/v1/batches/x' }]) {
      expect((await api.call(way, call)).headers.get('content-type')).toBe('application/json');
    }
  });
});
