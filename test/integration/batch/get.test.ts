import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashKey } from '../../../lib/auth/keys.ts';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { createNativeApi, type NativeApi, WAYS, type Way } from '../../support/native-api.ts';
import { finish } from '../../support/outcomes.ts';

let api: NativeApi;
beforeAll(async () => {
  api = await createNativeApi(() => ({
    batchUsage: async () => ({ tokens: { input: 5 }, cost_nanos: 1200, unpriced: 1 }),
  }));
});
afterAll(() => api.close());

async function submitted(items: number, as = 'ann'): Promise<string> {
  const body = JSON.stringify({ shape: 'openai', requests: new Array(items).fill({}) });
  return (await api.call('lambda', { method: 'POST', path: '/v1/batches', body, as })).json.id;
}

const UNKNOWN = '01a22937-e152-7b4a-a8eb-df4efcaa782f';
const ROUTES = [
  ['GET', ''],
  ['GET', '/results'],
  ['GET', '/results?limit=5'],
  ['POST', '/cancel'],
  ['DELETE', ''],
] as const;

describe.each(WAYS)('over %s', (way: Way) => {
  test('gives the documented keys in the documented order, absent values as null', async () => {
    const id = await submitted(2);
    const answer = await api.call(way, { path: `/v1/batches/${id}` });
    const created = answer.json.CreatedAt;
    expect(created).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    expect(answer.text).toBe(
      `{"ID":"${id}","RelayKeyHash":"${hashKey(plaintextOf('ann'))}","PolicyID":"policy-p","InboundShape":"openai",` +
        `"Status":"queued","TotalItems":2,"CreatedAt":"${created}","CompletedAt":null,"ProjectID":null,"TeamID":null,` +
        `"PrincipalKind":null,"PrincipalID":null,"CredentialKind":"key","CredentialID":"key-ann",` +
        `"counts":{"available":2},"items":[{"idx":0,"state":"available"},{"idx":1,"state":"available"}]}`,
    );
  });

  test('counts only the states present, and they sum to the total', async () => {
    const id = await submitted(6);
    await finish(api, id, [
      { idx: 1, state: 'completed', body: '{}' },
      { idx: 3, state: 'discarded', error: 'batch item: expired' },
      { idx: 4, state: 'cancelled' },
      { idx: 5, state: 'completed', body: '{}' },
    ]);
    const whole = (await api.call(way, { path: `/v1/batches/${id}` })).json;
    expect(whole.counts).toEqual({ available: 2, completed: 2, discarded: 1, cancelled: 1 });
    expect(whole.items.map((i: { state: string }) => i.state)).toEqual([
      'available',
      'completed',
      'available',
      'discarded',
      'cancelled',
      'completed',
    ]);
    const short = (await api.call(way, { path: `/v1/batches/${id}?items=false` })).json;
    expect(Object.keys(short.counts)).toEqual(['available', 'completed', 'discarded', 'cancelled']);
    expect(short).toEqual({ ...whole, items: undefined });
  });

  test('tells when the last item became final', async () => {
    const id = await submitted(1);
    await finish(api, id, [{ idx: 0, state: 'completed', body: '{}' }]);
    const { CompletedAt, CreatedAt } = (await api.call(way, { path: `/v1/batches/${id}?items=false` })).json;
    expect(Date.parse(CompletedAt)).toBeGreaterThanOrEqual(Date.parse(CreatedAt));
  });

  test('adds the usage of the batch when asked', async () => {
    const id = await submitted(1);
    const { usage } = (await api.call(way, { path: `/v1/batches/${id}?usage=true` })).json;
    expect(usage).toEqual({ tokens: { input: 5 }, cost_nanos: 1200, unpriced: 1 });
  });

  test.each(['items=1', 'items=', 'usage=yes', 'items=true&items=false'])('refuses ?%s with 400', async (query) => {
    const answer = await api.call(way, { path: `/v1/batches/${await submitted(1)}?${query}` });
    expect([answer.status, answer.json.error.param]).toEqual([400, query.slice(0, 5)]);
  });

  test.each(ROUTES)(
    '%s /v1/batches/{id}%s gives one 404 for a foreign, an unknown and a malformed id',
    async (method, tail) => {
      const foreign = await submitted(1, 'bob');
      const answers = await Promise.all(
        [foreign, UNKNOWN, randomUUID().toUpperCase(), 'x', 'batch_1'].map((id) =>
          api.call(way, { method, path: `/v1/batches/${id}${tail}` }),
        ),
      );
      for (const answer of answers) {
        expect(answer.status).toBe(404);
        expect(answer.text).toBe(
          '{"error":{"type":"invalid_request_error","message":"not found","code":"not_found","param":null}}',
        );
      }
      expect((await api.call('lambda', { path: `/v1/batches/${foreign}`, as: 'bob' })).json.Status).toBe('queued');
    },
  );

  test.each(ROUTES)('%s /v1/batches/{id}%s is 401 for a revoked key and for none', async (method, tail) => {
    const id = await submitted(1);
    for (const [as, code] of [
      ['gone', 'api_key_revoked'],
      [null, 'missing_api_key'],
    ] as const) {
      const answer = await api.call(way, { method, path: `/v1/batches/${id}${tail}`, as });
      expect([answer.status, answer.json.error.code]).toEqual([401, code]);
    }
  });

  test('cancels, also twice and with any body, and keeps the results of finished items', async () => {
    const id = await submitted(2);
    await finish(api, id, [{ idx: 0, state: 'completed', body: '{"a":1}' }]);
    for (const body of ['', 'no JSON']) {
      const answer = await api.call(way, {
        method: 'POST',
        path: `/v1/batches/${id}/cancel`,
        headers: { 'content-type': 'application/json' },
        body,
      });
      expect([answer.status, answer.text]).toEqual([200, '{"status":"cancelled"}']);
    }
    const { Status, CompletedAt, counts } = (await api.call(way, { path: `/v1/batches/${id}` })).json;
    expect([Status, typeof CompletedAt, counts]).toEqual(['cancelled', 'string', { completed: 1, cancelled: 1 }]);
    const results = await api.call('node', { path: `/v1/batches/${id}/results` });
    expect(results.text).toBe(
      '{"results":[{"idx":0,"state":"completed","response":{"a":1}},{"idx":1,"state":"cancelled"}]}',
    );
  });
});
