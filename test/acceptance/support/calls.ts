import { expect } from 'vitest';
import type { Database } from '../../../lib/db/database.ts';
import { sql } from '../../support/sql.ts';
import { KEYS } from './catalog.ts';

/** Where a call goes. */
export interface At {
  url: string;
}

export interface Status {
  ID: string;
  Status: string;
  TotalItems: number;
  CompletedAt: string | null;
  counts: Record<string, number>;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of many forms
  json: any;
}

/** One call of the native API as `ann`. */
export async function call(
  { url }: At,
  method: string,
  path: string,
  body?: string | Buffer | FormData,
): Promise<Answer> {
  const response = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${KEYS.RELAY_KEY_ANN}` },
    ...(body === undefined ? {} : { body: body as NonNullable<RequestInit['body']> }),
  });
  const text = await response.text();
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  return { status: response.status, headers: response.headers, text, json };
}

/** A submit body of `count` items whose `user` values are `<prefix>-<idx>`. */
export function itemsOf(count: number, prefix: string, model: string | ((idx: number) => string) = 'fast'): string {
  const requests = Array.from({ length: count }, (_, idx) => ({
    model: typeof model === 'string' ? model : model(idx),
    user: `${prefix}-${idx}`,
    messages: [{ role: 'user', content: `item ${idx}` }],
  }));
  return JSON.stringify({ shape: 'openai', requests });
}

/** Submits and returns the batch's id. */
export async function submit(at: At, body: string): Promise<string> {
  const answer = await call(at, 'POST', '/v1/batches', body);
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)]);
  return answer.json.id as string;
}

/** The batch without its items. */
export async function statusOf(at: At, id: string): Promise<Status> {
  const answer = await call(at, 'GET', `/v1/batches/${id}?items=false`);
  expect([answer.status, answer.text]).toEqual([200, expect.any(String)]);
  const status = answer.json as Status;
  const sum = Object.values(status.counts).reduce((total, n) => total + n, 0);
  expect([sum, status.counts]).toEqual([status.TotalItems, status.counts]);
  return status;
}

/** Reads until `holds`, and returns what was read; rejects with the last reading when it never does. */
export async function eventually<T>(
  read: () => Promise<T>,
  holds: (value: T) => boolean,
  withinMs = 60_000,
): Promise<T> {
  const deadline = performance.now() + withinMs;
  for (;;) {
    const value = await read();
    if (holds(value)) return value;
    if (performance.now() > deadline) throw new Error(`it stays ${JSON.stringify(value)}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Resolves with the batch once `holds`. */
export const until = (at: At, id: string, holds: (status: Status) => boolean, withinMs?: number): Promise<Status> =>
  eventually(() => statusOf(at, id), holds, withinMs);

/** Resolves once the last item is final. */
export const finished = (at: At, id: string, withinMs?: number): Promise<Status> =>
  until(at, id, (status) => status.CompletedAt !== null, withinMs);

/** Resolves once at least `count` items are completed. */
export const completed = (at: At, id: string, count: number, withinMs?: number): Promise<Status> =>
  until(at, id, (status) => (status.counts.completed ?? 0) >= count, withinMs);

/**
 * Checks the rules of every finished batch, whatever happened to it. Every item final, one usage event an item, no open
 * item, no concurrency row, results in order with one element an item that says the same as its row.
 */
export async function expectRecordedOnce(at: At, db: Database, id: string, total: number): Promise<void> {
  const [batch] = await sql(db, 'select open_items, completed_at from batches where id = $1::uuid', [id]);
  expect(batch).toMatchObject({ open_items: 0, completed_at: expect.any(Date) });
  const states = await sql<{ idx: number; state: string }>(
    db,
    'select idx, state::text from batch_items where batch_id = $1::uuid order by idx',
    [id],
  );
  expect(states.map((row) => row.idx)).toEqual(Array.from({ length: total }, (_, idx) => idx));
  const [events] = await sql(
    db,
    'select count(*)::int as events, count(distinct batch_idx)::int as items from usage_events where batch_id = $1::uuid',
    [id],
  );
  expect(events).toEqual({ events: total, items: total });
  const [mismatched] = await sql(
    db,
    `select count(*)::int as n from batch_items i join usage_events e on e.batch_id = i.batch_id and e.batch_idx = i.idx
     where i.batch_id = $1::uuid and (i.state = 'completed') <> (e.error_kind is null)`,
    [id],
  );
  expect(mismatched).toEqual({ n: 0 });
  const answer = await call(at, 'GET', `/v1/batches/${id}/results`);
  expect(answer.status).toBe(200);
  const results = answer.json.results as { idx: number; state: string; response?: object }[];
  expect(results.map(({ idx, state }) => ({ idx, state }))).toEqual(states);
  for (const { state, response } of results) {
    expect(response === undefined ? 'none' : typeof response).toBe(state === 'completed' ? 'object' : 'none');
  }
}
