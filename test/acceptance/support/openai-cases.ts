import type OpenAI from 'openai';
import { toFile } from 'openai';
import { expect } from 'vitest';
import { eventually } from './calls.ts';
import { clientsOf, linesOf, openaiEnd, uuidOf } from './clients.ts';
import type { Deployment } from './setups.ts';

type Case = readonly [name: string, run: (setup: Deployment) => Promise<void>];
type Endpoint = '/v1/chat/completions' | '/v1/responses' | '/v1/embeddings';

/** The most bytes of one answer of Lambda. */
const ANSWER_BYTES = 4_500_000;

const line = (id: string, model: string, url: Endpoint = '/v1/chat/completions') => {
  const body =
    url === '/v1/embeddings' ? { model, input: 'hi' } : { model, messages: [{ role: 'user', content: 'hi' }] };
  return JSON.stringify({ custom_id: id, method: 'POST', url, body });
};

const upload = async (client: OpenAI, lines: readonly string[]) =>
  client.files.create({ file: await toFile(Buffer.from(lines.join('\n')), 'in.jsonl'), purpose: 'batch' });

const create = (client: OpenAI, fileId: string, endpoint: Endpoint = '/v1/chat/completions') =>
  client.batches.create({ input_file_id: fileId, endpoint, completion_window: '24h' });

/** Makes a batch of lines and returns its id. */
const start = async (client: OpenAI, lines: readonly string[], endpoint?: Endpoint): Promise<string> =>
  (await create(client, (await upload(client, lines)).id, endpoint)).id;

const eventsOf = async (setup: Deployment, id: string) => {
  const text =
    'select count(*)::int as n, count(distinct batch_idx)::int as items from usage_events where batch_id = $1::uuid';
  return (await setup.sql(text, [uuidOf(id)]))[0];
};

/** Closes the window of a batch now, as if a day had gone by. */
const closeWindow = async (setup: Deployment, id: string) => {
  for (const table of ['openai_batches', 'batches']) {
    await setup.sql(`update ${table} set expires_at = clock_timestamp() - interval '1 second' where id = $1::uuid`, [
      uuidOf(id),
    ]);
  }
};

/** The cases of the official OpenAI client, the same wherever the service runs. */
export const OPENAI_CASES: readonly Case[] = [
  [
    'runs a file to an output and an error file',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const file = await upload(openai, [line('a', 'any'), line('b', 'status-400'), '', line('c', 'any')]);
      expect(file).toMatchObject({ object: 'file', filename: 'in.jsonl', purpose: 'batch', status: 'processed' });
      const made = await create(openai, file.id);
      expect(made).toMatchObject({ object: 'batch', status: 'validating', input_file_id: file.id });
      const done = await openaiEnd(openai, made.id);
      expect(done).toMatchObject({
        status: 'completed',
        request_counts: { total: 3, completed: 2, failed: 1 },
        errors: null,
      });
      expect(done.usage!.total_tokens).toBeGreaterThan(0);
      const output = await linesOf(openai, done.output_file_id!);
      expect(output.map(({ custom_id, response, error }) => [custom_id, response.status_code, error])).toEqual([
        ['a', 200, null],
        ['c', 200, null],
      ]);
      expect(output[0].response.body.object).toBe('chat.completion');
      expect(await linesOf(openai, done.error_file_id!)).toMatchObject([
        { custom_id: 'b', response: { status_code: 400, body: { error: { message: 'status 400 asked for' } } } },
      ]);
      expect(await eventsOf(setup, made.id)).toEqual({ n: 3, items: 3 });
      expect((await openai.batches.list({ limit: 1 })).data[0]!.id).toBe(made.id);
      const other = clientsOf(setup, 'bob').openai;
      await expect(other.batches.retrieve(made.id)).rejects.toMatchObject({ status: 404 });
      await expect(other.batches.cancel(made.id)).rejects.toMatchObject({ status: 404 });
      await expect(other.files.content(done.output_file_id!)).rejects.toMatchObject({ status: 404 });
      await openai.files.delete(done.output_file_id!);
      await expect(openai.files.content(done.output_file_id!)).rejects.toMatchObject({ status: 404 });
    },
  ],
  [
    'fails a batch of bad lines with all of its faults, and calls nobody',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const id = await start(openai, [line('a', 'any'), '{', line('a', 'any'), line('b', 'any', '/v1/responses')]);
      const done = await openaiEnd(openai, id);
      expect(done).toMatchObject({ status: 'failed', output_file_id: null, error_file_id: null });
      expect(done.errors!.data!.map(({ code, line: at }) => [code, at])).toEqual([
        ['invalid_json_line', 2],
        ['duplicate_custom_id', 3],
        ['mismatched_url', 4],
      ]);
      expect(setup.upstream.received).toEqual([]);
    },
  ],
  [
    'cancels a batch that runs, and keeps what was finished',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const id = await start(openai, [line('a', 'any'), line('b', 'hang')]);
      await eventually(
        () => openai.batches.retrieve(id),
        ({ request_counts }) => request_counts?.completed === 1,
      );
      await setup.upstream.waitForRequests(1, ({ model }) => model === 'hang');
      expect(['cancelling', 'cancelled']).toContain((await openai.batches.cancel(id)).status);
      const done = await openaiEnd(openai, id);
      expect(done).toMatchObject({ status: 'cancelled', request_counts: { total: 2, completed: 1, failed: 1 } });
      expect(await linesOf(openai, done.output_file_id!)).toMatchObject([{ custom_id: 'a' }]);
      expect(await linesOf(openai, done.error_file_id!)).toMatchObject([
        { custom_id: 'b', response: null, error: { code: 'batch_cancelled' } },
      ]);
      expect(await eventsOf(setup, id)).toEqual({ n: 2, items: 2 });
      await expect(openai.batches.cancel(id)).rejects.toMatchObject({ status: 409 });
    },
  ],
  [
    'runs embeddings',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const done = await openaiEnd(openai, await start(openai, [line('e', 'any', '/v1/embeddings')], '/v1/embeddings'));
      expect(done).toMatchObject({ status: 'completed', error_file_id: null });
      const [output] = await linesOf(openai, done.output_file_id!);
      expect(output.response.body.object).toBe('list');
    },
  ],
  [
    'gives a result file beyond what one answer of Lambda holds, whole and in ranges',
    async (setup) => {
      const { openai, redirected } = clientsOf(setup);
      const ids = ['1', '2', '3', '4', '5', '6'];
      const id = await start(
        openai,
        ids.map((one) => line(one, 'big-1')),
      );
      const done = await openaiEnd(openai, id);
      expect(redirected()).toBe(0);
      const bytes = Buffer.from(await (await openai.files.content(done.output_file_id!)).arrayBuffer());
      expect(redirected()).toBe(setup.isLambda ? 1 : 0);
      expect(bytes.length).toBeGreaterThan(ANSWER_BYTES);
      expect((await openai.files.retrieve(done.output_file_id!)).bytes).toBe(bytes.length);
      const output = bytes.toString().trimEnd().split('\n');
      expect(output.map((one) => JSON.parse(one).custom_id)).toEqual(ids);
      for (const [from, to] of [
        [5_000_000, 5_000_009],
        [100, 5_000_099],
      ] as const) {
        const part = await openai.files.content(done.output_file_id!, { headers: { range: `bytes=${from}-${to}` } });
        expect(part.status).toBe(206);
        expect(bytes.subarray(from, to + 1).equals(Buffer.from(await part.arrayBuffer()))).toBe(true);
      }
      expect(redirected()).toBe(setup.isLambda ? 2 : 0);
    },
  ],
  [
    'makes a file of an upload, which goes past the platform, once',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const text = Array.from({ length: 50 }, (_, i) => line(`u${i}`, 'any')).join('\n');
      const announced = await openai.post<{ upload_url: string; upload_id: string }>('/uploads', {
        body: { bytes: Buffer.byteLength(text) },
      });
      const form = { upload_id: announced.upload_id, filename: 'large.jsonl', purpose: 'batch' as const };
      const fileOfUpload = () => openai.files.create(form as unknown as OpenAI.FileCreateParams);
      await expect(fileOfUpload()).rejects.toMatchObject({ status: 409, code: 'upload_incomplete' });
      expect((await fetch(announced.upload_url, { method: 'PUT', body: text })).status).toBe(200);
      const file = await fileOfUpload();
      expect(file).toMatchObject({ filename: 'large.jsonl', bytes: text.length, purpose: 'batch' });
      expect(await (await openai.files.content(file.id)).text()).toBe(text);
      await expect(fileOfUpload()).rejects.toMatchObject({ status: 409, code: 'upload_used' });
      const done = await openaiEnd(openai, (await create(openai, file.id)).id);
      expect(done).toMatchObject({ status: 'completed', request_counts: { total: 50, completed: 50, failed: 0 } });
      const output = await linesOf(openai, done.output_file_id!);
      expect(output.map(({ custom_id }) => custom_id)).toEqual(Array.from({ length: 50 }, (_, i) => `u${i}`));
    },
  ],
  [
    'expires a batch whose window closes, and keeps what was finished',
    async (setup) => {
      const { openai } = clientsOf(setup);
      const id = await start(openai, [line('a', 'any'), line('b', 'retry-after-3600'), line('c', 'status-400')]);
      // b waits for an hour that it does not have; a sweep passes over batches that somebody is just writing to.
      const text = `
        select count(*) filter (where not_before is not null)::int as waiting, count(finalized_at)::int as ended
        from batch_items where batch_id = $1::uuid`;
      await eventually(
        () => setup.sql(text, [uuidOf(id)]),
        ([items]) => items!.waiting === 1 && items!.ended === 2,
      );
      await closeWindow(setup, id);
      await setup.sweep();
      const done = await openaiEnd(openai, id);
      expect(done).toMatchObject({ status: 'expired', request_counts: { total: 3, completed: 1, failed: 2 } });
      expect(done.expired_at).not.toBeNull();
      expect(await linesOf(openai, done.output_file_id!)).toMatchObject([{ custom_id: 'a' }]);
      expect(await linesOf(openai, done.error_file_id!)).toMatchObject([
        { custom_id: 'b', response: null, error: { code: 'batch_expired' } },
        { custom_id: 'c', response: { status_code: 400 }, error: null },
      ]);
      expect(await eventsOf(setup, id)).toEqual({ n: 3, items: 3 });
    },
  ],
];
