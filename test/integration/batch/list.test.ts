import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { compactBatch } from '../../../lib/batch/results/compact.ts';
import { PayloadNotFound } from '../../../lib/payloads/payload-store.ts';
import { createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';
import { finish } from '../../support/outcomes.ts';

let api: NativeApi;
beforeAll(async () => {
  api = await createNativeApi();
});
afterAll(() => api.close());

async function submitted(as = 'ann', headers: Record<string, string> = {}): Promise<string> {
  const body = '{"shape":"anthropic","requests":[{}]}';
  return (await api.call('lambda', { method: 'POST', path: '/v1/batches', body, as, headers })).json.id;
}

describe.each(WAYS)('over %s', (way) => {
  test('lists the own batches, newest first, page by page', async () => {
    await api.sql('delete from batches');
    const empty = await api.call(way, { path: '/v1/batches?surface=relay' });
    expect(empty.text).toBe('{"data":[],"has_more":false,"last_id":null}');

    const ids: string[] = [];
    for (let i = 0; i < 3; i++) ids.unshift(await submitted());
    await submitted('bob');
    await finish(api, ids[0]!, [{ idx: 0, state: 'completed', body: '1' }]);

    const first = await api.call(way, { path: '/v1/batches?surface=relay&limit=2' });
    expect(first.json.data.map((b: { id: string }) => b.id)).toEqual(ids.slice(0, 2));
    expect([first.json.has_more, first.json.last_id]).toEqual([true, ids[1]]);
    const [done, open] = first.json.data;
    expect(Object.keys(done)).toEqual(['id', 'status', 'shape', 'total_items', 'created_at', 'completed_at', 'counts']);
    expect(done).toMatchObject({ status: 'queued', shape: 'anthropic', total_items: 1, counts: { completed: 1 } });
    expect([typeof done.completed_at, open.completed_at]).toEqual(['string', null]);

    const second = await api.call(way, { path: `/v1/batches?surface=relay&limit=2&after=${first.json.last_id}` });
    expect(second.json.data.map((b: { id: string }) => b.id)).toEqual([ids[2]]);
    expect(second.json.has_more).toBe(false);
  });

  test('shows the same counts before and after a batch is compacted, and does not count again then', async () => {
    const body = '{"shape":"openai","requests":[{},{},{},{}]}';
    const { id } = (await api.call('lambda', { method: 'POST', path: '/v1/batches', body })).json;
    await finish(api, id, [
      { idx: 0, state: 'completed', body: '1' },
      { idx: 1, state: 'cancelled' },
      { idx: 2, state: 'discarded', error: 'batch item: internal' },
      { idx: 3, state: 'completed', body: '2' },
    ]);
    const counts = async () => {
      const list = await api.call(way, { path: '/v1/batches?surface=relay&limit=1' });
      const status = await api.call(way, { path: `/v1/batches/${id}?items=false` });
      return [list.json.data[0].counts, status.json.counts].map((shown) => JSON.stringify(shown));
    };
    const counted = Array(2).fill('{"completed":2,"discarded":1,"cancelled":1}');
    expect(await counts()).toEqual(counted);
    await compactBatch(api.app as never, id);
    // Nobody deletes rows: this shows that they are not read any more.
    await api.sql('delete from batch_items where batch_id = $1', [id]);
    expect(await counts()).toEqual(counted);
    await api.sql('delete from batches where id = $1', [id]);
  });

  test.each([
    ['', 'missing_required_parameter', 'surface'],
    ['?surface=openai', 'invalid_value', 'surface'],
    ['?surface=relay&limit=0', 'invalid_value', 'limit'],
    ['?surface=relay&limit=101', 'invalid_value', 'limit'],
    ['?surface=relay&limit=ten', 'invalid_value', 'limit'],
    ['?surface=relay&after=batch_1', 'invalid_value', 'after'],
  ])('refuses the query "%s"', async (query, code, param) => {
    const answer = await api.call(way, { path: `/v1/batches${query}` });
    expect([answer.status, answer.json.error.code, answer.json.error.param]).toEqual([400, code, param]);
  });

  test('deletes a finished batch with its objects, and leaves its usage attribution and Idempotency-Key', async () => {
    const headers = { 'idempotency-key': `delete ${way}` };
    const id = await submitted('ann', headers);
    await finish(api, id, [{ idx: 0, state: 'completed', body: '1' }]);
    await compactBatch(api.app as never, id);
    const [batch] = await api.sql('select input_id, results_id from batches where id = $1', [id]);

    const answer = await api.call(way, { method: 'DELETE', path: `/v1/batches/${id}` });
    expect([answer.status, answer.text]).toEqual([200, `{"id":"${id}","deleted":true}`]);
    expect((await api.call(way, { path: `/v1/batches/${id}` })).status).toBe(404);
    expect((await api.call(way, { method: 'DELETE', path: `/v1/batches/${id}` })).status).toBe(404);
    for (const table of ['batch_items', 'batch_cursors', 'segment_refs']) {
      expect(await api.sql(`select 1 from ${table} where batch_id = $1`, [id])).toEqual([]);
    }
    expect(await api.sql('select 1 as kept from usage_attributions where batch_id = $1', [id])).toEqual([{ kept: 1 }]);
    for (const [kind, object] of [
      ['input', batch!.input_id],
      ['result', batch!.results_id],
      ['index', batch!.results_id],
    ] as const) {
      await expect(api.payloads.size({ kind, id: object as string })).rejects.toThrow(PayloadNotFound);
    }
    expect(await submitted('ann', headers)).toBe(id);
  });

  test('refuses to delete a batch that is not finished with 409', async () => {
    const id = await submitted();
    const answer = await api.call(way, { method: 'DELETE', path: `/v1/batches/${id}` });
    expect([answer.status, answer.json.error.code]).toEqual([409, 'batch_not_finished']);
    expect((await api.call(way, { path: `/v1/batches/${id}` })).status).toBe(200);
  });
});
