import Anthropic from '@anthropic-ai/sdk';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { plaintextOf } from '../support/auth-catalog.ts';
import { type Service, startService } from '../support/service.ts';

// The official client, with only its base URL and key changed.

let service: Service;

beforeAll(async () => {
  service = await startService({ env: { RELAY_BATCH_ITEM_TIMEOUT_S: '2' } });
});
afterAll(() => service.close());

const clientOf = (as: string, prefix = '', options: object = {}) =>
  new Anthropic({
    baseURL: `http://127.0.0.1:${service.server.port}${prefix}`,
    apiKey: plaintextOf(as),
    maxRetries: 0,
    ...options,
  });

const request = (id: string, model: string) => ({
  custom_id: id,
  params: { model, max_tokens: 16, messages: [{ role: 'user' as const, content: 'hi' }] },
});

const ended = (client: Anthropic, id: string) =>
  vi.waitUntil(
    async () => {
      const batch = await client.messages.batches.retrieve(id);
      return batch.processing_status === 'ended' ? batch : null;
    },
    { interval: 20, timeout: 20_000 },
  );

const resultsOf = async (client: Anthropic, id: string) => {
  const results = [];
  for await (const one of await client.messages.batches.results(id)) results.push(one);
  return results;
};

describe.each(['', '/anthropic'])('the Anthropic client at %s/', (prefix) => {
  test('runs a batch and decodes its results', async () => {
    const client = clientOf('ann', prefix);
    const batch = await client.messages.batches.create({
      requests: [request('a', 'any'), request('b', 'status-400'), request('c', 'any')],
    });
    expect(batch).toMatchObject({
      type: 'message_batch',
      processing_status: 'in_progress',
      ended_at: null,
      results_url: null,
    });
    expect(batch.id).toMatch(/^msgbatch_01[A-Za-z0-9]+$/);
    const done = (await ended(client, batch.id))!;
    expect(done.request_counts).toEqual({ processing: 0, succeeded: 2, errored: 1, canceled: 0, expired: 0 });
    expect(done.results_url).toMatch(/^http:\/\/127\.0\.0\.1:\d+\//);
    const results = await resultsOf(client, batch.id);
    expect(results).toMatchObject([
      { custom_id: 'a', result: { type: 'succeeded', message: { type: 'message' } } },
      {
        custom_id: 'b',
        result: { type: 'errored', error: { type: 'error', error: { message: 'status 400 asked for' } } },
      },
      { custom_id: 'c', result: { type: 'succeeded' } },
    ]);
  });

  test('works through the beta resource and with a bearer token as newer clients send it', async () => {
    const client = clientOf('ann', prefix, { apiKey: null, authToken: plaintextOf('ann') });
    const batch = await client.beta.messages.batches.create({
      requests: [request('a', 'any')],
      betas: ['some-beta-2026-01-01'],
    });
    await ended(client, batch.id);
    const sent = service.upstream.received.at(-1)!;
    expect(sent.headers['anthropic-beta']).toContain('some-beta-2026-01-01');
  });

  test('refuses a bad custom_id with the place of it', async () => {
    const client = clientOf('ann', prefix);
    await expect(client.messages.batches.create({ requests: [request('not ok', 'any')] })).rejects.toMatchObject({
      status: 400,
      error: {
        type: 'error',
        error: { type: 'invalid_request_error', message: expect.stringMatching(/^requests\.0\.custom_id: /) },
      },
    });
  });

  test('cancels, and keeps what was finished', async () => {
    const client = clientOf('ann', prefix);
    const { id } = await client.messages.batches.create({ requests: [request('a', 'any'), request('b', 'hang')] });
    await vi.waitUntil(
      async () =>
        (await service.sql("select 1 from batch_items where state = 'completed' and batch_id = $1::uuid", [uuidOf(id)]))
          .length === 1,
      { timeout: 10_000 },
    );
    await expect(client.messages.batches.results(id)).rejects.toThrow();
    expect(['canceling', 'ended']).toContain((await client.messages.batches.cancel(id)).processing_status);
    const done = (await ended(client, id))!;
    expect(done.request_counts).toEqual({ processing: 0, succeeded: 1, errored: 0, canceled: 1, expired: 0 });
    expect(done.cancel_initiated_at).not.toBeNull();
    expect((await resultsOf(client, id)).map((one) => one.result.type)).toEqual(['succeeded', 'canceled']);
    expect(await client.messages.batches.delete(id)).toEqual({ id, type: 'message_batch_deleted' });
    await expect(client.messages.batches.retrieve(id)).rejects.toMatchObject({
      status: 404,
      error: { error: { type: 'not_found_error' } },
    });
  });

  test('lists batches page by page, and nobody else sees them', async () => {
    const client = clientOf('ann', prefix);
    const ids = [];
    for await (const batch of client.messages.batches.list({ limit: 1 })) ids.push(batch.id);
    expect(ids.length).toBeGreaterThan(1);
    expect(new Set(ids).size).toBe(ids.length);
    await expect(clientOf('bob', prefix).messages.batches.retrieve(ids[0]!)).rejects.toMatchObject({ status: 404 });
    await expect(clientOf('nobody', prefix).messages.batches.list()).rejects.toMatchObject({
      status: 401,
      error: { error: { type: 'authentication_error' } },
    });
  });
});

test('results_url names what the server listens on, whatever host was asked', async () => {
  const client = clientOf('ann', '', { baseURL: `http://localhost:${service.server.port}` });
  const { id } = await client.messages.batches.create({ requests: [request('a', 'any')] });
  const { results_url } = (await ended(client, id))!;
  expect(results_url).toBe(`http://127.0.0.1:${service.server.port}/v1/messages/batches/${id}/results`);
  expect(await resultsOf(client, id)).toHaveLength(1);
});

/** The core's id of a message batch. */
function uuidOf(id: string): string {
  return id.slice('msgbatch_01'.length).replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}
