import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { toFile } from 'openai';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { type FaultProxy, startFaultProxy } from '../support/fault-proxy.ts';
import { type Platform, startPlatform, wakeEvent } from '../support/lambda.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';
import { SERVICE_CATALOG, SERVICE_SECRETS } from '../support/service.ts';
import { startUpstream, type TestUpstream } from '../support/upstream.ts';
import { clientsOf, linesOf, resultsOf, uuidOf } from './support/clients.ts';

// Lambda freezes a process when an invocation returns. Here every write of the store takes its time, so that whatever an
// invocation has only begun does not exist yet when the test looks right after it.

const SLOW_MS = 400;

let dir: string;
let database: TestDatabase;
let upstream: TestUpstream;
let store: FaultProxy;
let aws: Platform;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'relay-frozen-'));
  [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
  await writeFile(join(dir, 'catalog.yaml'), SERVICE_CATALOG(upstream.url));
  // The platform's own server, by another way in.
  const late: Record<string, string> = { ...SERVICE_SECRETS };
  aws = await startPlatform({ ...database, catalog: join(dir, 'catalog.yaml'), env: late });
  store = await startFaultProxy(aws.aws.endpoint);
  aws.env.AWS_ENDPOINT_URL = store.endpoint;
  store.decide = (method) => (method === 'PUT' ? { delayMs: SLOW_MS } : null);
});
afterAll(async () => {
  await aws?.close();
  await store?.stop();
  await upstream?.close();
  await database?.close();
  await rm(dir, { recursive: true, force: true });
});
beforeEach(async () => {
  await aws.lose();
  upstream.forget();
});

const sql = (text: string, values?: unknown[]) => database.sql(text, values);
const clients = () =>
  clientsOf({ upstream, isLambda: true, call: aws.call, sql, sweep: aws.sweep } as Parameters<typeof clientsOf>[0]);

const line = (id: string, model: string) =>
  JSON.stringify({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body: { model, messages: [] } });

async function openaiBatch(...models: string[]): Promise<string> {
  const { openai } = clients();
  const text = models.map((model, i) => line(`c${i}`, model)).join('\n');
  const file = await openai.files.create({ file: await toFile(Buffer.from(text), 'in.jsonl'), purpose: 'batch' });
  const made = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const;
  return (await openai.batches.create(made)).id;
}

async function messageBatch(...models: string[]): Promise<string> {
  const requests = models.map((model, i) => ({ custom_id: `c${i}`, params: { model, max_tokens: 1, messages: [] } }));
  return (await clients().anthropic.messages.batches.create({ requests })).id;
}

const invoke = async () => expect(await aws.container().invoke(wakeEvent())).toEqual({ batchItemFailures: [] });
const close = (id: string) =>
  sql("update batches set expires_at = clock_timestamp() - interval '1 second' where id = $1::uuid", [uuidOf(id)]);

test('one worker invocation validates a batch, runs it and has its result files written when it returns', async () => {
  const id = await openaiBatch('any', 'status-400', 'any');
  await invoke();
  const { openai } = clients();
  const done = await openai.batches.retrieve(id);
  expect(done).toMatchObject({ status: 'completed', request_counts: { total: 3, completed: 2, failed: 1 } });
  expect((await linesOf(openai, done.output_file_id!)).length).toBe(2);
  expect((await linesOf(openai, done.error_file_id!)).length).toBe(1);
  expect(await sql('select id from workers')).toEqual([]);
});

test('a create sends one wake-up, and the invocation that validates sends those of the items', async () => {
  const id = await openaiBatch('hang', 'hang', 'hang');
  expect(aws.queued()).toEqual(['{"kind":"work"}']);
  await aws.lose();
  let left = 900_000;
  const invocation = aws.container().invoke(wakeEvent(), () => left);
  await upstream.waitForRequests(1);
  expect(aws.queued().length).toBe(3);
  left = 10_000; // gives up what hangs
  await invocation;
  await clients().openai.batches.cancel(id);
});

test('a sweep validates a batch whose wake-up was lost, and wakes workers for it', async () => {
  const id = await openaiBatch('any', 'any');
  await aws.lose();
  await aws.sweep();
  expect((await clients().openai.batches.retrieve(id)).status).toBe('in_progress');
  expect(aws.queued().length).toBeGreaterThanOrEqual(2);
  await aws.drain();
  expect((await clients().openai.batches.retrieve(id)).status).toBe('completed');
});

test('a sweep that fails a batch in its validation has said so when it returns', async () => {
  const id = await openaiBatch('any');
  await sql("update openai_batches set endpoint = '/v1/responses' where id = $1::uuid", [uuidOf(id)]);
  await aws.lose();
  await aws.sweep();
  expect((await clients().openai.batches.retrieve(id)).errors!.data![0]!.code).toBe('mismatched_url');
});

test('a sweep that expires the last items of batches has their results written when it returns', async () => {
  const ids = [await openaiBatch('retry-after-3600'), await messageBatch('retry-after-3600')] as const;
  await aws.drain();
  for (const id of ids) await close(id);
  await aws.sweep();
  const { openai, anthropic } = clients();
  const done = await openai.batches.retrieve(ids[0]);
  expect(done.status).toBe('expired');
  expect(await linesOf(openai, done.error_file_id!)).toMatchObject([{ error: { code: 'batch_expired' } }]);
  expect((await anthropic.messages.batches.retrieve(ids[1])).processing_status).toBe('ended');
  expect((await resultsOf(anthropic, ids[1])).map(({ result }) => result.type)).toEqual(['expired']);
});

test('a sweep writes the results that no worker came to write before it returns', async () => {
  const ids = [await openaiBatch('retry-after-3600'), await messageBatch('retry-after-3600')] as const;
  await aws.drain();
  // The state after the last worker was killed behind its last commit.
  for (const id of ids) {
    await sql(
      `update batch_items set state = 'cancelled', not_before = null, finalized_at = clock_timestamp() where batch_id = $1::uuid`,
      [uuidOf(id)],
    );
    await sql(
      "update batches set open_items = 0, completed_at = clock_timestamp() - interval '1 minute' where id = $1::uuid",
      [uuidOf(id)],
    );
  }
  await aws.sweep();
  const { openai, anthropic } = clients();
  expect((await openai.batches.retrieve(ids[0])).status).toBe('completed');
  expect((await anthropic.messages.batches.retrieve(ids[1])).processing_status).toBe('ended');
});

test('a cancel of which nothing runs has its results written when it answers', async () => {
  const ids = [await openaiBatch('retry-after-3600'), await messageBatch('retry-after-3600')] as const;
  await aws.drain();
  const { openai, anthropic } = clients();
  await openai.batches.cancel(ids[0]);
  expect((await openai.batches.retrieve(ids[0])).status).toBe('cancelled');
  await anthropic.messages.batches.cancel(ids[1]);
  expect((await anthropic.messages.batches.retrieve(ids[1])).processing_status).toBe('ended');
});

test('a batch that is cancelled before its validation has ended when that answers, and never runs', async () => {
  const id = await openaiBatch('any');
  const { openai } = clients();
  await openai.batches.cancel(id);
  expect((await openai.batches.retrieve(id)).status).toBe('cancelled');
  await aws.drain();
  await aws.sweep();
  expect(upstream.received).toEqual([]);
});
