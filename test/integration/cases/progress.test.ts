import { rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { cancelBatch } from '../../../lib/batch/cancel.ts';
import { BOUNDARY, formOf } from '../../support/files-form.ts';
import { type Answer, WAYS, type Way } from '../../support/native-api.ts';
import { type Service, type ServiceOptions, startService } from '../../support/service.ts';

// How far a batch is, and why its items wait ("Progress" in docs/spec/native-api.md).

const ADMIN = 'admin-token-of-this-test';
const CATALOG = `---
kind: RateLimit
metadata: {name: two-a-day}
spec: {rules: [{meter: requests, amount: 2, window: 86400, strategy: fixed-window}]}
---
kind: Policy
metadata: {name: limited}
spec: {models: [test], rateLimit: two-a-day}
---
kind: Key
metadata: {name: eve}
spec: {policy: limited, valueFrom: {kind: env, env: TEST_KEY_EVE}}
---
kind: Binding
metadata: {name: keyed-anthropic}
spec: {model: keyed, host: keyed, adapter: anthropic}
`;
const KEYS = ['sk-host-one', 'sk-host-two'];
const MEMBERS = [
  ...['id', 'state', 'total', 'done', 'completed', 'discarded', 'cancelled', 'running', 'waiting', 'rate', 'eta'],
  ...['started_at', 'cost_nanos', 'unpriced', 'max_cost_nanos', 'execution', 'paused_by', 'expires_at', 'reasons'],
];
/** After quick answers a worker claims ahead of its slots. */
const MORE_THAN_CLAIMED = 200;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

interface Seen {
  state: string;
  total: number;
  done: number;
  running: number;
  waiting: number;
  reasons: {
    reason: string;
    text: string;
    items: number;
    since: string;
    next_try_at: string | null;
    host_key?: string;
  }[];
  [name: string]: unknown;
}

let service: Service;
let release: (() => void) | null = null;

const start = (options: ServiceOptions = {}) =>
  startService({
    catalog: CATALOG,
    ...options,
    env: { RELAY_BATCH_CONCURRENCY: '2', RELAY_CONTROL_PORT: '0', RELAY_ADMIN_TOKEN: ADMIN, ...options.env },
  });
const many = (n: number, model = 'any') => Array.from({ length: n }, () => ({ model, messages: [] }));
const ask = (way: Way, id: string, as = 'ann'): Promise<Answer> =>
  service.call(way, { path: `/v1/batches/${id}/progress`, as });

/** The counts add up, in every answer. */
async function progress(way: Way, id: string, as?: string): Promise<Seen> {
  const answer = await ask(way, id, as);
  expect([answer.status, answer.text]).toEqual([200, expect.any(String)]);
  const seen: Seen = answer.json;
  expect(Object.keys(seen)).toEqual(MEMBERS);
  expect(seen.done + seen.running + seen.waiting).toBe(seen.total);
  expect(seen.reasons.reduce((sum, { items }) => sum + items, 0)).toBe(seen.waiting);
  for (const reason of seen.reasons) {
    expect(Object.keys(reason)).toEqual(['reason', 'text', 'items', 'since', 'next_try_at']);
    expect(reason.since).toMatch(TIME);
  }
  return seen;
}

/** The progress, as soon as it fits. */
const until = (way: Way, id: string, fits: (seen: Seen) => boolean, as?: string): Promise<Seen> =>
  vi.waitUntil(
    async () => {
      const seen = await progress(way, id, as);
      return fits(seen) ? seen : null;
    },
    { timeout: 25_000, interval: 50 },
  );
const waitsFor = (reason: string, items: number) => (seen: Seen) =>
  seen.reasons.some((one) => one.reason === reason && one.items === items);

async function administrator(id: string, token = ADMIN): Promise<{ status: number; json: Seen }> {
  const response = await fetch(`http://127.0.0.1:${service.server.controlPort}/api/batches/${id}/progress`, {
    headers: { authorization: `Bearer ${token}` },
  });
  return { status: response.status, json: (await response.json()) as Seen };
}

async function createOpenai(way: Way, lines: readonly string[]): Promise<string> {
  const body = formOf([
    { name: 'purpose', value: 'batch' },
    { name: 'file', filename: 'in.jsonl', value: lines.join('\n') },
  ]);
  const headers = { 'content-type': `multipart/form-data; boundary=${BOUNDARY}` };
  const file = await service.call(way, { method: 'POST', path: '/v1/files', body, headers });
  const batch = { input_file_id: file.json.id, endpoint: '/v1/chat/completions', completion_window: '24h' };
  return (await service.call(way, { method: 'POST', path: '/v1/batches', body: JSON.stringify(batch) })).json.id;
}
const line = (id: string) =>
  JSON.stringify({ custom_id: id, method: 'POST', url: '/v1/chat/completions', body: { model: 'any', messages: [] } });

async function createAnthropic(way: Way, model = 'any'): Promise<string> {
  const requests = [{ custom_id: 'one', params: { model, max_tokens: 1, messages: [] } }];
  const body = JSON.stringify({ requests });
  return (await service.call(way, { method: 'POST', path: '/v1/messages/batches', body })).json.id;
}
const uuidOf = (id: string) => id.slice(-32).replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');

/** Makes the directory of a kind of object a file, so that none of them can be written; returns how to undo it. */
async function block(kind: string): Promise<() => Promise<void>> {
  const path = join(service.payloadDir, kind);
  await rename(path, `${path}.aside`).catch(() => {});
  await writeFile(path, '');
  return async () => {
    await rm(path);
    await rename(`${path}.aside`, path).catch(() => {});
  };
}

/** Cancels what a test left, and waits until nothing of it holds a slot. */
async function endAll(): Promise<void> {
  release?.();
  release = null;
  const open = await service.sql('select id, owner from batches where completed_at is null');
  for (const { id, owner } of open) {
    for (const surface of ['relay', 'openai', 'anthropic']) {
      await cancelBatch(service.app, String(owner), surface, String(id));
    }
  }
  for (const { id } of open) await service.finished(String(id));
}

describe.each(WAYS)('over %s', (way) => {
  beforeAll(async () => {
    service = await start();
  });
  afterAll(() => service.close());
  beforeEach(async () => {
    service.upstream.forget();
    for (const key of KEYS) service.upstream.failKey(key, null);
    for (const name of ['one', 'two']) await service.app.pool.reset(service.app.catalog().hostKeys.get(name)!);
  });
  afterEach(endAll);

  test('a batch runs, what is not claimed waits for a slot, and it ends', async () => {
    release = service.upstream.hold();
    const id = await service.submit(way, many(6), { more: { completion_window: '1h' } });
    await service.upstream.waitForRequests(2);
    const seen = await progress(way, id);
    expect(seen).toMatchObject({ id, state: 'running', total: 6, running: 2, waiting: 4, execution: 'live' });
    expect(seen.reasons).toMatchObject([
      { reason: 'slots', text: 'waits for a free slot', items: 4, next_try_at: null },
    ]);
    for (const time of [seen.started_at, seen.expires_at]) expect(time).toMatch(TIME);
    release();
    expect(await until(way, id, ({ state }) => state === 'ended')).toMatchObject({
      done: 6,
      completed: 6,
      reasons: [],
    });
  });

  test('completed, discarded and cancelled items are counted, also beside a replica that does not count them', async () => {
    release = service.upstream.hold();
    const id = await service.submit(way, [{}, ...many(4)]);
    await service.upstream.waitForRequests(1);
    await until(way, id, ({ discarded }) => discarded === 1);
    await service.call(way, { method: 'POST', path: `/v1/batches/${id}/cancel` });
    const cancelled = await until(way, id, ({ done }) => done === 5);
    expect(cancelled).toMatchObject({ state: 'cancelled', completed: 0, discarded: 1, cancelled: 4 });
    await service.sql('update batches set cancelled_items = 0, discarded_items = 0');
    expect(await progress(way, id)).toEqual(cancelled);
  });

  test('items that failed show their last status and when they are tried again', async () => {
    const id = await service.submit(way, many(2, 'status-500'), { more: { max_attempts: 9 } });
    const { state, reasons } = await until(way, id, waitsFor('retry_pause', 2));
    expect(state).toBe('waiting');
    expect(reasons).toMatchObject([{ text: 'upstream status 500', next_try_at: expect.stringMatching(TIME) }]);
  });

  test('the same reason lasts since its first pause', async () => {
    const id = await service.submit(way, many(1, 'status-503'), { more: { max_attempts: 9 } });
    const first = await until(way, id, waitsFor('retry_pause', 1));
    await service.upstream.waitForRequests(2);
    const later = await until(
      way,
      id,
      (seen) => waitsFor('retry_pause', 1)(seen) && seen.reasons[0]!.next_try_at !== first.reasons[0]!.next_try_at,
    );
    expect(later.reasons[0]!.since).toBe(first.reasons[0]!.since);
  });

  test('a host that cannot be reached', async () => {
    const id = await service.submit(way, many(1, 'lost'), { more: { max_attempts: 9 } });
    const { reasons } = await until(way, id, waitsFor('host_down', 1));
    expect(reasons[0]!.text).toBe('upstream "lost" unreachable after 3 attempts');
  });

  test('a limit that refuses', async () => {
    const id = await service.submit(way, many(5), { as: 'eve', more: { on_limit: 'wait' } });
    const { reasons } = await until(way, id, waitsFor('rate_limit', 3), 'eve');
    expect(reasons[0]!.text).toBe('rate limit exceeded: requests of policy limited');
  });

  test.each([
    [401, 'key_breaker'],
    [402, 'no_credit'],
  ])(
    'keys that answer %i: the reason is %s, and only the administrator sees the name of a key',
    async (status, reason) => {
      for (const key of KEYS) service.upstream.failKey(key, status);
      for (const name of ['one', 'two']) await service.app.pool.reset(service.app.catalog().hostKeys.get(name)!);
      const id = await service.submit(way, many(3, 'keyed'), { more: { on_limit: 'wait' } });
      const { reasons } = await until(way, id, waitsFor(reason, 3));
      expect(JSON.stringify(reasons)).not.toMatch(/"(one|two)"|sk-host/);
      const shown = await administrator(id);
      expect(shown.json.reasons).toMatchObject([{ ...reasons[0], host_key: expect.stringMatching(/^(one|two)$/) }]);
    },
  );

  test('a batch whose share others have, and one that has the slots', async () => {
    release = service.upstream.hold();
    const first = await service.submit(way, many(1));
    await service.upstream.waitForRequests(1);
    const second = await service.submit(way, many(MORE_THAN_CLAIMED), { as: 'bob' });
    const { reasons, state } = await until(way, second, (seen) => seen.reasons[0]?.reason === 'fair_share', 'bob');
    expect([state, reasons.length]).toEqual(['running', 1]);
    expect(await progress(way, first)).toMatchObject({ state: 'running', reasons: [] });
  });

  test('a store that takes no answers', async () => {
    release = service.upstream.hold();
    const id = await service.submit(way, many(MORE_THAN_CLAIMED));
    await service.upstream.waitForRequests(2);
    const unblock = await block('segment');
    try {
      release();
      const { reasons } = await until(way, id, (seen) => seen.reasons[0]?.reason === 'storage_full');
      expect(reasons).toHaveLength(1);
    } finally {
      await unblock();
    }
    await until(way, id, ({ state }) => state === 'ended');
  });

  test('OpenAI: validating, then failed', async () => {
    const failed = await createOpenai(way, ['no json']);
    expect(await until(way, failed, ({ state }) => state === 'failed')).toMatchObject({ total: 0, started_at: null });
    // Another replica validates this one.
    const other = `batch_${'f'.repeat(32)}`;
    await service.sql(
      `insert into openai_batches (id, owner, attribution, endpoint, input_file_id, object_id, lease_until)
        select $2::uuid, owner, attribution, endpoint, input_file_id, object_id, clock_timestamp() + interval '1 hour'
        from openai_batches where id = $1::uuid`,
      [uuidOf(failed), uuidOf(other)],
    );
    expect(await progress(way, other)).toMatchObject({ id: other, state: 'validating', total: 0, reasons: [] });
    await service.sql('update openai_batches set cancelling_at = clock_timestamp() where id = $1::uuid', [
      uuidOf(other),
    ]);
    expect(await progress(way, other)).toMatchObject({ state: 'cancelled' });
    await service.sql('delete from openai_batches');
  });

  test('SDK surfaces: finalizing until their results are written', async () => {
    const unblock = [await block('output'), await block('result')];
    try {
      const openai = await createOpenai(way, [line('a')]);
      const anthropic = await createAnthropic(way);
      for (const id of [openai, anthropic]) {
        expect(await until(way, id, ({ state }) => state === 'finalizing')).toMatchObject({ done: 1, reasons: [] });
      }
      // The native results can be read without a document.
      const id = await service.submit(way, many(1));
      await until(way, id, ({ state }) => state === 'ended');
    } finally {
      for (const undo of unblock) await undo();
    }
  });

  test('takes the ids of every surface, shows the one of the batch, and knows no other forms', async () => {
    const native = await service.submit(way, many(1));
    const openai = await createOpenai(way, [line('a')]);
    const anthropic = await createAnthropic(way);
    for (const id of [native, openai, anthropic]) {
      await until(way, id, ({ state }) => state === 'ended');
      expect(await progress(way, id)).toMatchObject({ id, total: 1 });
      expect(await progress(way, uuidOf(id.replaceAll('-', '')))).toMatchObject({ id });
      expect((await administrator(id)).json).toMatchObject({ id, state: 'ended' });
    }
    const hex = native.replaceAll('-', '');
    for (const id of [
      `batch_${hex}`,
      `msgbatch_01${hex}`,
      hex,
      native.toUpperCase(),
      `batch_${openai.slice(7, 38)}`,
      'x',
    ]) {
      expect([id, (await ask(way, id)).status]).toEqual([id, 404]);
      expect([id, (await administrator(id)).status]).toEqual([id, 404]);
    }
  });

  test("another owner's batch is as unknown as none, and the administrator needs the token", async () => {
    const openai = await createOpenai(way, [line('a')]);
    const ids = [await service.submit(way, many(1)), openai, await createAnthropic(way), uuidOf(openai)];
    const unknown = await ask(way, '01890000-0000-7000-8000-000000000000', 'bob');
    expect(unknown.status).toBe(404);
    for (const id of ids) {
      const answer = await ask(way, id, 'bob');
      expect([answer.status, answer.text]).toEqual([404, unknown.text]);
    }
    expect((await administrator(ids[0]!, 'another-token-of-16')).status).toBe(401);
    expect((await administrator(ids[0]!)).status).toBe(200);
  });
});

describe('several replicas', () => {
  test('no worker: before one starts, after one stopped, and after one was lost', async () => {
    service = await start({ env: { RELAY_BATCH_CONCURRENCY: '0' } });
    const { database, upstream, payloadDir } = service;
    try {
      release = upstream.hold();
      const id = await service.submit('node', many(4));
      const seen = await progress('node', id);
      expect(seen).toMatchObject({ state: 'waiting', started_at: null });
      expect(seen.reasons).toMatchObject([{ reason: 'no_worker', text: 'no worker with slots is running', items: 4 }]);

      const other = await start({ database, upstream, payloadDir });
      await upstream.waitForRequests(2);
      // Both count what one of them runs.
      expect(await progress('node', id)).toMatchObject({ state: 'running', running: 2, waiting: 2 });
      await other.close();
      const stopped = await until('node', id, waitsFor('no_worker', 4));
      expect(stopped.reasons[0]!.since > seen.reasons[0]!.since).toBe(true);

      const lost = await start({ database, upstream, payloadDir });
      await upstream.waitForRequests(4);
      await until('node', id, waitsFor('slots', 2));
      await database.sql(`update workers set beat_at = clock_timestamp() - interval '1 hour' where slots > 0`);
      // Its next heartbeat ends this; the rescue by the other replica does too.
      await until('node', id, ({ waiting, reasons }) => waiting > 0 && reasons[0]!.reason !== 'fair_share');
      await lost.close();
      expect((await until('node', id, waitsFor('no_worker', 4))).state).toBe('waiting');
    } finally {
      release?.();
      await service.close();
    }
  });
});
