import { createReadStream } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import OpenAI, { toFile } from 'openai';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { plaintextOf } from '../support/auth-catalog.ts';
import { type Service, startService } from '../support/service.ts';

// The official client, with only its base URL and key changed.

let service: Service;
let home: string;

beforeAll(async () => {
  service = await startService({ env: { RELAY_BATCH_ITEM_TIMEOUT_S: '2' } });
  home = await mkdtemp(join(tmpdir(), 'relay-sdk-'));
});
afterAll(async () => {
  await service.close();
  await rm(home, { recursive: true, force: true });
});

const clientOf = (as: string, prefix = '/v1') =>
  new OpenAI({ baseURL: `http://127.0.0.1:${service.server.port}${prefix}`, apiKey: plaintextOf(as), maxRetries: 0 });

const line = (id: string, model: string, url = '/v1/chat/completions', more: object = {}) => {
  const body =
    url === '/v1/embeddings' ? { model, input: 'hi' } : { model, messages: [{ role: 'user', content: 'hi' }] };
  return JSON.stringify({ custom_id: id, method: 'POST', url, body: { ...body, ...more } });
};

const ended = (client: OpenAI, id: string) =>
  vi.waitUntil(
    async () => {
      const batch = await client.batches.retrieve(id);
      return ['completed', 'failed', 'expired', 'cancelled'].includes(batch.status) ? batch : null;
    },
    { interval: 20, timeout: 20_000 },
  );

const linesOf = async (client: OpenAI, fileId: string) => {
  const text = await (await client.files.content(fileId)).text();
  expect(text.endsWith('\n')).toBe(true);
  return text
    .slice(0, -1)
    .split('\n')
    .map((one) => JSON.parse(one));
};

describe.each(['/v1', '/openai/v1'])('the OpenAI client at %s', (prefix) => {
  test('uploads a file, runs a batch of it and reads output and errors', async () => {
    const client = clientOf('ann', prefix);
    const text = [line('a', 'any'), line('b', 'status-400'), '', line('c', 'any')].join('\r\n');
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' });
    expect(file).toMatchObject({
      object: 'file',
      bytes: text.length,
      filename: 'in.jsonl',
      purpose: 'batch',
      status: 'processed',
    });
    const batch = await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
      metadata: { team: 'blue' },
    });
    expect(batch).toMatchObject({
      object: 'batch',
      status: 'validating',
      input_file_id: file.id,
      metadata: { team: 'blue' },
    });
    const done = (await ended(client, batch.id))!;
    expect(done).toMatchObject({
      status: 'completed',
      request_counts: { total: 3, completed: 2, failed: 1 },
      errors: null,
      usage: { total_tokens: expect.any(Number) },
    });
    const output = await linesOf(client, done.output_file_id!);
    expect(output.map((one) => [one.custom_id, one.response.status_code, one.error])).toEqual([
      ['a', 200, null],
      ['c', 200, null],
    ]);
    expect(output[0].response.body.object).toBe('chat.completion');
    const errors = await linesOf(client, done.error_file_id!);
    expect(errors).toMatchObject([
      {
        custom_id: 'b',
        error: null,
        response: { status_code: 400, body: { error: { message: 'status 400 asked for' } } },
      },
    ]);
    for (const id of [done.output_file_id!, done.error_file_id!]) {
      expect(await client.files.retrieve(id)).toMatchObject({
        purpose: 'batch_output',
        filename: expect.stringMatching(/\.jsonl$/),
      });
    }
  });

  test('streams a file from disk, pages through files and deletes them', async () => {
    const client = clientOf('bob', prefix);
    const path = join(home, 'disk.jsonl');
    await writeFile(path, line('a', 'any'));
    const made = [];
    for (let i = 0; i < 3; i++) {
      made.push(
        await client.files.create({
          file: createReadStream(path),
          purpose: 'batch',
          expires_after: { anchor: 'created_at', seconds: 3600 },
        }),
      );
    }
    expect(made[0]!.expires_at).toBe(made[0]!.created_at + 3600);
    const seen = [];
    for await (const file of client.files.list({ limit: 1, purpose: 'batch' })) seen.push(file.id);
    expect(seen.slice(0, 3)).toEqual(made.map(({ id }) => id).reverse());
    for (const { id } of made) expect(await client.files.delete(id)).toEqual({ id, object: 'file', deleted: true });
    await expect(client.files.retrieve(made[0]!.id)).rejects.toMatchObject({
      status: 404,
      param: 'id',
      error: { message: `No such File object: ${made[0]!.id}` },
    });
  });

  test('runs embeddings through an openai binding', async () => {
    const client = clientOf('ann', prefix);
    const file = await client.files.create({
      file: await toFile(Buffer.from(line('e', 'any', '/v1/embeddings')), 'e.jsonl'),
      purpose: 'batch',
    });
    const { id } = await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/embeddings',
      completion_window: '24h',
    });
    const done = (await ended(client, id))!;
    expect(done).toMatchObject({
      status: 'completed',
      request_counts: { total: 1, completed: 1, failed: 0 },
      error_file_id: null,
    });
    const [output] = await linesOf(client, done.output_file_id!);
    expect(output.response.body.object).toBe('list');
  });

  test('fails a batch of bad lines before anything runs, and names every one', async () => {
    const client = clientOf('ann', prefix);
    const before = service.upstream.received.length;
    const text = [line('a', 'any'), '{"custom_id":', line('a', 'any'), line('b', 'any', '/v1/responses')].join('\n');
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'bad.jsonl'), purpose: 'batch' });
    const { id } = await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    });
    const done = (await ended(client, id))!;
    expect(done).toMatchObject({ status: 'failed', output_file_id: null, error_file_id: null });
    expect(done.errors!.data!.map(({ code, line: at }) => [code, at])).toEqual([
      ['invalid_json_line', 2],
      ['duplicate_custom_id', 3],
      ['mismatched_url', 4],
    ]);
    expect(service.upstream.received.length).toBe(before);
  });

  test('cancels a batch, keeps what was finished, and refuses to cancel it again', async () => {
    const client = clientOf('ann', prefix);
    const text = [line('a', 'any'), line('b', 'hang')].join('\n');
    const file = await client.files.create({ file: await toFile(Buffer.from(text), 'c.jsonl'), purpose: 'batch' });
    const { id } = await client.batches.create({
      input_file_id: file.id,
      endpoint: '/v1/chat/completions',
      completion_window: '24h',
    });
    await vi.waitUntil(async () => (await client.batches.retrieve(id)).request_counts?.completed === 1, {
      timeout: 10_000,
    });
    expect(['cancelling', 'cancelled']).toContain((await client.batches.cancel(id)).status);
    const done = (await ended(client, id))!;
    expect(done.status).toBe('cancelled');
    expect(await linesOf(client, done.output_file_id!)).toMatchObject([{ custom_id: 'a' }]);
    expect(await linesOf(client, done.error_file_id!)).toMatchObject([
      { custom_id: 'b', response: null, error: { code: 'batch_cancelled' } },
    ]);
    const again = await client.batches.cancel(id).catch((error) => error);
    expect(again).toMatchObject({ status: 409, error: { message: "Cannot cancel a batch with status 'cancelled'." } });
    expect(again.headers.get('x-should-retry')).toBe('false');
  });

  test('lists batches page by page, the newest first, and nobody else sees them', async () => {
    const ann = clientOf('ann', prefix);
    const ids = [];
    for await (const batch of ann.batches.list({ limit: 2 })) ids.push(batch.id);
    expect(ids.length).toBeGreaterThan(3);
    expect(new Set(ids).size).toBe(ids.length);
    expect([...ids].sort().reverse()).toEqual(ids);
    await expect(clientOf('bob', prefix).batches.retrieve(ids[0]!)).rejects.toMatchObject({ status: 404 });
    await expect(clientOf('nobody', prefix).batches.list()).rejects.toMatchObject({
      status: 401,
      code: 'invalid_api_key',
    });
  });
});
