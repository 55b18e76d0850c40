import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI, { toFile } from 'openai';
import { expect } from 'vitest';
import type { Database } from '../../../lib/db/database.ts';
import type { PayloadKind } from '../../../lib/payloads/payload-store.ts';
import { ROOT } from '../../support/root.ts';
import { sql } from '../../support/sql.ts';
import type { At } from './calls.ts';
import { KEYS } from './catalog.ts';
import { anthropicEnd, openaiEnd, resultsOf, uuidOf } from './clients.ts';

const STRIKE = join(ROOT, 'test/support/strike-process.ts');

/** The official clients at a server, as `ann`. */
export const openaiAt = ({ url }: At) => new OpenAI({ baseURL: `${url}/v1`, apiKey: KEYS.RELAY_KEY_ANN });
export const anthropicAt = ({ url }: At) => new Anthropic({ baseURL: url, apiKey: KEYS.RELAY_KEY_ANN });

/** Requests whose `user` is `<prefix>-<idx>`; their custom_id begins so. Text and custom_id are `bytes` longer. */
export function requestsOf(count: number, prefix: string, bytes = 0) {
  const content = 'x'.repeat(10 + bytes);
  const more = '_'.repeat(bytes);
  return Array.from({ length: count }, (_, idx) => ({
    custom_id: `${prefix}-${idx}${more}`,
    body: { model: 'fast', user: `${prefix}-${idx}`, messages: [{ role: 'user' as const, content }] },
  }));
}

/** Uploads the requests as a file, makes a batch of it and returns its id. */
export async function openaiBatch(at: At, requests: ReturnType<typeof requestsOf>): Promise<string> {
  return batchOf(at, await uploadOf(at, requests));
}

/** Uploads the requests as a file and returns its id. */
export async function uploadOf(at: At, requests: ReturnType<typeof requestsOf>): Promise<string> {
  const frame = { method: 'POST', url: '/v1/chat/completions' };
  const text = requests.map((request) => JSON.stringify({ ...request, ...frame })).join('\n');
  const file = await toFile(Buffer.from(text), 'in.jsonl');
  return (await openaiAt(at).files.create({ file, purpose: 'batch' })).id;
}

/** Makes a batch of a file and returns its id. */
export async function batchOf(at: At, fileId: string): Promise<string> {
  const create = { input_file_id: fileId, endpoint: '/v1/chat/completions', completion_window: '24h' } as const;
  return (await openaiAt(at).batches.create(create)).id;
}

/** Makes a message batch of the requests and returns its id. */
export async function messageBatch(at: At, requests: ReturnType<typeof requestsOf>): Promise<string> {
  const all = requests.map(({ custom_id, body }) => ({ custom_id, params: { ...body, max_tokens: 10 } }));
  return (await anthropicAt(at).messages.batches.create({ requests: all })).id;
}

/**
 * Sends a signal in the moment in which the next object of a kind is being written. Resolves when it is on the
 * look-out; the function that it returns resolves when the signal was sent.
 */
export async function strikeAtWrite(
  payloads: string,
  kind: PayloadKind,
  pid: number,
  signal: NodeJS.Signals,
): Promise<() => Promise<void>> {
  const args = [STRIKE, join(payloads, kind), String(pid), signal];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  await once(child.stdout, 'data');
  return async () => {
    const [code] = await exited;
    if (code !== 0) throw new Error(`no ${kind} was written in time`);
  };
}

/** Names of the files of a kind: objects, and those (`.tmp-`) that are being written. */
async function namesOf(payloads: string, kind: PayloadKind): Promise<string[]> {
  const hours = await readdir(join(payloads, kind)).catch(() => []);
  const names = await Promise.all(hours.map((hour) => readdir(join(payloads, kind, hour)).catch(() => [])));
  return names.flat();
}

/** True while an object of that kind is being written. */
export async function isWriting(payloads: string, kind: PayloadKind): Promise<boolean> {
  return (await namesOf(payloads, kind)).some((name) => name.startsWith('.'));
}

/** How many objects of a kind the payload directory holds; those that are being written do not count. */
export async function objectsOf(payloads: string, kind: PayloadKind): Promise<number> {
  return (await namesOf(payloads, kind)).filter((name) => !name.startsWith('.')).length;
}

async function expectEventsOnce(db: Database, id: string, total: number): Promise<void> {
  const text =
    'select count(*)::int as events, count(distinct batch_idx)::int as items from usage_events where batch_id = $1::uuid';
  expect(await sql(db, text, [uuidOf(id)])).toEqual([{ events: total, items: total }]);
  const [items] = await sql(
    db,
    `select count(*)::int as items, count(*) filter (where state = 'completed')::int as completed
     from batch_items where batch_id = $1::uuid`,
    [uuidOf(id)],
  );
  expect(items).toEqual({ items: total, completed: total });
}

/**
 * Checks a batch of requests that all can be answered, whatever happened to it. It is completed, has one output
 * file with one line for each request in their order, no error file, and one usage event for each.
 */
export async function expectOutputOnce(
  at: At,
  db: Database,
  id: string,
  requests: ReturnType<typeof requestsOf>,
): Promise<void> {
  const client = openaiAt(at);
  const total = requests.length;
  const done = await openaiEnd(client, id, 120_000);
  expect(done).toMatchObject({ status: 'completed', errors: null, error_file_id: null });
  expect(done.request_counts).toEqual({ total, completed: total, failed: 0 });
  const text = await (await client.files.content(done.output_file_id!)).text();
  const lines = text.trimEnd().split('\n');
  expect(lines.map((line) => JSON.parse(line).custom_id)).toEqual(requests.map(({ custom_id }) => custom_id));
  expect((await client.files.list({ purpose: 'batch_output' })).data.map((file) => file.id)).toEqual([
    done.output_file_id,
  ]);
  await expectEventsOnce(db, id, total);
}

/** The same of a message batch and its results. */
export async function expectResultsOnce(
  at: At,
  db: Database,
  id: string,
  requests: ReturnType<typeof requestsOf>,
): Promise<void> {
  const client = anthropicAt(at);
  const done = await anthropicEnd(client, id, 120_000);
  const counts = { processing: 0, succeeded: requests.length, errored: 0, canceled: 0, expired: 0 };
  expect(done.request_counts).toEqual(counts);
  const results = await resultsOf(client, id);
  expect(results.map(({ custom_id }) => custom_id)).toEqual(requests.map(({ custom_id }) => custom_id));
  await expectEventsOnce(db, id, requests.length);
}
