import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { WAYS } from '../../../support/native-api.ts';
import { type Service, startService } from '../../../support/service.ts';

const PATH = '/v1/messages/batches';

let service: Service;
beforeAll(async () => {
  service = await startService();
});
afterAll(() => service.close());

const uuidOf = (id: string) =>
  id.slice('msgbatch_01'.length).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');

describe.each(WAYS)('message batches that a worker runs, over %s', (way) => {
  const create = async (requests: Record<string, object>, headers: Record<string, string> = {}): Promise<string> => {
    const list = Object.entries(requests).map(([custom_id, params]) => ({ custom_id, params }));
    const call = { method: 'POST', path: PATH, body: JSON.stringify({ requests: list }), headers };
    return (await service.call(way, call)).json.id;
  };
  const get = async (id: string) => (await service.call(way, { path: `${PATH}/${id}` })).json;
  const ended = (id: string) =>
    vi.waitFor(
      async () => {
        const batch = await get(id);
        expect(batch.processing_status).toBe('ended');
        return batch;
      },
      { timeout: 30_000, interval: 20 },
    );
  // biome-ignore lint/suspicious/noExplicitAny: results are of many forms
  const results = async (id: string): Promise<Record<string, any>> => {
    const { text } = await service.call(way, { path: `${PATH}/${id}/results` });
    const lines = text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    return Object.fromEntries(lines.map(({ custom_id, result }) => [custom_id, result]));
  };

  test('tell each request by what became of it', async () => {
    const id = await create({
      good: { model: 'any', max_tokens: 1 },
      refused: { model: 'status-404' },
      inside: { model: 'refusal-in-200' },
      page: { model: 'html-400' },
      streamed: { model: 'any', stream: true },
      unknown: { model: 'no-such-model' },
      foreign: { model: 'foreign' },
      'no-model': {},
    });
    const batch = await ended(id);
    expect(batch.request_counts).toEqual({ processing: 0, succeeded: 1, errored: 7, canceled: 0, expired: 0 });
    const all = await results(id);
    expect(all.good).toMatchObject({ type: 'succeeded', message: { type: 'message', role: 'assistant' } });
    const errors = Object.entries(all)
      .slice(1)
      .map(([name, { error }]) => [name, error.error.type, error.error.message]);
    expect(errors).toEqual([
      ['refused', 'not_found_error', 'status 404 asked for'],
      ['inside', 'invalid_request_error', 'no such engine'],
      ['page', 'invalid_request_error', 'upstream status 400'],
      ['streamed', 'invalid_request_error', 'stream must not be true'],
      ['unknown', 'not_found_error', expect.stringContaining('no-such-model')],
      ['foreign', 'permission_error', expect.any(String)],
      ['no-model', 'invalid_request_error', 'model is required'],
    ]);
  });

  test('send the bytes of params, and the version and betas of the create, with every call', async () => {
    service.upstream.forget();
    const headers = { 'anthropic-version': '2026-10-21', 'anthropic-beta': 'one-1,two-2' };
    const body = '{"requests":[{"params":{"b":1, "model":"any","a":9007199254740993},"custom_id":"x"}]}';
    const { json } = await service.call(way, { method: 'POST', path: PATH, body, headers });
    await ended(json.id);
    const [sent] = service.upstream.received;
    expect(sent!.body.toString()).toBe('{"b":1, "model":"any","a":9007199254740993}');
    expect([sent!.path, sent!.headers['anthropic-version'], sent!.headers['anthropic-beta']]).toEqual([
      '/v1/messages',
      '2026-10-21',
      'one-1,two-2',
    ]);
  });

  test('wait out a refusal that may pass, until the window closes: then they have expired', async () => {
    const id = await create({ waits: { model: 'status-529' }, good: { model: 'any' } });
    const waiting =
      "select 1 from batch_items where batch_id = $1::uuid and state = 'available' and not_before is not null";
    await vi.waitFor(async () => expect(await service.sql(waiting, [uuidOf(id)])).toHaveLength(1), { timeout: 20_000 });
    expect((await get(id)).processing_status).toBe('in_progress');
    await service.sql("update batches set expires_at = clock_timestamp() - interval '1 second' where id = $1::uuid", [
      uuidOf(id),
    ]);
    const batch = await ended(id);
    expect(batch.request_counts).toEqual({ processing: 0, succeeded: 1, errored: 0, canceled: 0, expired: 1 });
    expect(await results(id)).toMatchObject({ waits: { type: 'expired' }, good: { type: 'succeeded' } });
  });
});
