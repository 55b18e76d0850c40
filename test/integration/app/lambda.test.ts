import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { itemsOf } from '../../acceptance/support/calls.ts';
import { catalogOf } from '../../acceptance/support/catalog.ts';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { countdown, type Platform, startPlatform, wakeEvent } from '../../support/lambda.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { startUpstream, type TestUpstream } from '../../support/upstream.ts';

const KEYS = {
  RELAY_KEY_ANN: plaintextOf('ann'),
  RELAY_KEY_BOB: plaintextOf('bob'),
  UPSTREAM_KEY_1: 'upstream-1',
  UPSTREAM_KEY_2: 'upstream-2',
};
const WORK = '{"kind":"work"}';

let dir: string;
let database: TestDatabase;
let upstream: TestUpstream;
let aws: Platform;

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'relay-lambda-'));
  upstream = await startUpstream();
  database = await createTestDatabase();
  const large = [
    'kind: Model\nmetadata: {name: large}\nspec: {provider: test, aliases: ["big-*"]}',
    'kind: Binding\nmetadata: {name: large}\nspec: {model: large, host: up}',
  ];
  await writeFile(join(dir, 'catalog.yaml'), [catalogOf(upstream.url), ...large].join('\n---\n'));
  aws = await startPlatform({ ...database, catalog: join(dir, 'catalog.yaml'), env: KEYS });
});
afterAll(async () => {
  await aws?.close();
  await upstream?.close();
  await database?.close();
  await rm(dir, { recursive: true, force: true });
});
beforeEach(async () => {
  await aws.drain();
  upstream.forget();
});

const sql = (text: string, values?: unknown[]) => database.sql(text, values);

async function submit(count: number, prefix: string, model = 'fast'): Promise<string> {
  const answer = await aws.call({ method: 'POST', path: '/v1/batches', body: itemsOf(count, prefix, model) });
  expect([answer.status, answer.text]).toEqual([202, expect.any(String)]);
  return answer.json.id;
}

async function countsOf(id: string): Promise<Record<string, number>> {
  return (await aws.call({ path: `/v1/batches/${id}?items=false` })).json.counts;
}

async function expectOnce(id: string, count: number): Promise<void> {
  expect(await countsOf(id)).toEqual({ completed: count });
  const [events] = await sql(
    'select count(*)::int as events, count(distinct batch_idx)::int as items from usage_events where batch_id = $1::uuid',
    [id],
  );
  expect(events).toEqual({ events: count, items: count });
  const users = upstream.received.map(({ body }) => JSON.parse(body.toString()).user as string);
  expect(new Set(users).size).toBe(count);
  expect(users).toHaveLength(count);
}

const leases = async () => (await sql('select id from workers')).length;

test('runs a batch from API Gateway event to results by eight invocations', async () => {
  const id = await submit(200, 'whole');
  expect(aws.queued()).toEqual(Array.from({ length: 8 }, () => WORK));
  await aws.drain();
  await expectOnce(id, 200);
  expect(upstream.maxOpen).toBeLessThanOrEqual(8);
  const { json } = await aws.call({ path: `/v1/batches/${id}/results` });
  expect(json.results.map((result: { idx: number }) => result.idx)).toEqual(Array.from({ length: 200 }, (_, i) => i));
  expect(json.next_after).toBeNull();
  const usage = await aws.call({ path: '/v1/usage/summary?group_by=source' });
  expect([usage.status, usage.json.rows[0].requests]).toEqual([200, 200]);
});

test('ends each invocation with its buffer flushed and its lease deleted, and compacts what it finished', async () => {
  const id = await submit(3, 'flushed');
  const one = aws.container();
  expect(await one.invoke(wakeEvent())).toEqual({ batchItemFailures: [] });
  await expectOnce(id, 3);
  expect(await leases()).toBe(0);
  const [batch] = await sql('select completed_at, results_id from batches where id = $1::uuid', [id]);
  expect(batch).toEqual({ completed_at: expect.any(Date), results_id: expect.any(String) });
});

test('redirects to the results document of a finished batch that is too large for one answer', async () => {
  const id = await submit(6, 'large', 'big-1');
  await aws.drain();
  await aws.sweep();
  await vi.waitUntil(
    async () => {
      await sql("update batches set completed_at = completed_at - interval '10 seconds' where id = $1::uuid", [id]);
      await aws.sweep();
      return (await sql('select 1 from batches where id = $1::uuid and results_id is not null', [id])).length === 1;
    },
    { timeout: 10_000 },
  );
  const answer = await aws.call({ path: `/v1/batches/${id}/results` });
  expect([answer.status, answer.text]).toEqual([303, '']);
  const document = await fetch(answer.headers.get('location')!);
  expect([document.status, document.headers.get('content-type')]).toEqual([200, 'application/json']);
  const { results } = (await document.json()) as { results: { idx: number; response: object }[] };
  expect(results.map(({ idx }) => idx)).toEqual([0, 1, 2, 3, 4, 5]);
  expect(Object.keys(results[5]!.response).length).toBeGreaterThan(0);
  const page = await aws.call({ path: `/v1/batches/${id}/results?limit=1000` });
  expect(page.status).toBe(200);
  expect(page.bytes.length).toBeLessThanOrEqual(4_600_000);
  expect(page.json.next_after).toBe(page.json.results.at(-1).idx);
  expect((await aws.call({ path: `/v1/batches/${id}/results`, as: 'bob' })).status).toBe(404);
});

test('redirects to a page of the one result that is too large for an answer, and pages go on after it', async () => {
  const requests = ['fast', 'big-5', 'fast'].map((model) => ({ model, messages: [] }));
  const body = JSON.stringify({ shape: 'openai', requests });
  const { json } = await aws.call({ method: 'POST', path: '/v1/batches', body });
  await aws.drain();
  const path = `/v1/batches/${json.id}/results?limit=100`;
  const first = await aws.call({ path });
  expect([first.json.results.length, first.json.next_after]).toEqual([1, 0]);
  const large = await aws.call({ path: `${path}&after=0` });
  expect([large.status, large.text]).toEqual([303, '']);
  const page = await fetch(large.headers.get('location')!);
  expect([page.status, page.headers.get('content-type')]).toEqual([200, 'application/json']);
  const text = await page.text();
  expect(text.length).toBeGreaterThan(5 * 1024 * 1024);
  const { results, next_after } = JSON.parse(text);
  expect([results.length, results[0].idx, results[0].state, next_after]).toEqual([1, 1, 'completed', 1]);
  const last = await aws.call({ path: `${path}&after=1` });
  expect([last.json.results[0].idx, last.json.next_after]).toEqual([2, null]);
});

test('runs a batch that was uploaded, straight into the bucket', async () => {
  const body = itemsOf(4, 'uploaded');
  const announced = { method: 'POST', path: '/v1/uploads', body: JSON.stringify({ bytes: Buffer.byteLength(body) }) };
  const { json } = await aws.call(announced);
  expect(json.upload_url.startsWith(`${aws.aws.endpoint}/`)).toBe(true);
  expect((await fetch(json.upload_url, { method: 'PUT', body })).status).toBe(200);
  const submitted = { method: 'POST', path: '/v1/batches', body: JSON.stringify({ upload_id: json.upload_id }) };
  const made = await aws.call(submitted);
  expect([made.status, made.json.total_items]).toEqual([202, 4]);
  await aws.drain();
  await expectOnce(made.json.id, 4);
  expect((await aws.call(submitted)).json.error.code).toBe('upload_used');
});

test('sends a wake-up for each item up to eight, and an invocation that finds nothing sends none', async () => {
  await submit(3, 'three');
  expect(aws.queued()).toHaveLength(3);
  expect(await aws.drain()).toBe(3);
  expect(await aws.container().invoke(wakeEvent())).toEqual({ batchItemFailures: [] });
  expect(aws.queued()).toEqual([]);
  expect(await leases()).toBe(0);
});

test('claims nothing once less is left than the item limit and 30 s', async () => {
  const id = await submit(2, 'late');
  const before = aws.queued().length;
  await aws.container().invoke(wakeEvent(), () => 329_000);
  expect(await countsOf(id)).toEqual({ available: 2 });
  expect(aws.queued()).toHaveLength(before);
  await aws.container().invoke(wakeEvent(), countdown(340_000));
  await expectOnce(id, 2);
});

test('finishes what it runs when its time for claims is over, and wakes exactly one other', async () => {
  const letGo = upstream.hold();
  const id = await submit(5, 'handover');
  await aws.lose();
  let left = 900_000;
  const invocation = aws.container().invoke(wakeEvent(), () => left);
  await upstream.waitForRequests(1);
  left = 300_000;
  letGo();
  await invocation;
  expect((await countsOf(id)).completed).toBeGreaterThanOrEqual(1);
  expect((await countsOf(id)).available).toBeGreaterThanOrEqual(1);
  expect(aws.queued()).toEqual([WORK]);
  await aws.drain();
  await expectOnce(id, 5);
});

test('aborts and releases what still runs with 20 s left, without spending an attempt', async () => {
  const id = await submit(1, 'stuck', 'hang');
  await aws.lose();
  let left = 900_000;
  const invocation = aws.container().invoke(wakeEvent(), () => left);
  await upstream.waitForRequests(1);
  left = 19_000;
  await invocation;
  await upstream.waitForClosedEarly();
  expect(await leases()).toBe(0);
  const [item] = await sql('select state::text, losses, rounds from batch_items where batch_id = $1::uuid', [id]);
  expect(item).toEqual({ state: 'available', losses: 0, rounds: 0 });
  expect(aws.queued()).toEqual([WORK]);
  await aws.call({ method: 'POST', path: `/v1/batches/${id}/cancel` });
  await aws.drain();
});

test('waits in one invocation for an item that is due within moments', async () => {
  upstream.failKey('upstream-1', 500);
  const id = await submit(2, 'pause');
  await aws.lose();
  const invocation = aws.container().invoke(wakeEvent());
  await upstream.waitForRequests(1);
  upstream.failKey('upstream-1', null);
  await invocation;
  const counts = await countsOf(id);
  expect((counts.completed ?? 0) + (counts.discarded ?? 0)).toBe(2);
  expect(counts.completed).toBeGreaterThanOrEqual(1);
  expect(aws.queued()).toEqual([]);
});

test('runs nothing twice because of duplicate, reordered, late or foreign messages', async () => {
  const id = await submit(40, 'storm');
  for (let i = 0; i < 30; i++) aws.aws.faux.sendMessage(aws.queueName, WORK, i % 3 === 0 ? { delaySeconds: 1 } : {});
  for (const odd of ['x', 'null', '[]', '{"kind":"catalog"}']) aws.aws.faux.sendMessage(aws.queueName, odd);
  await aws.drain();
  await expectOnce(id, 40);
});

test('tops up wake-ups to the due items, at most eight, less the workers that live', async () => {
  const id = await submit(30, 'topup');
  await aws.lose();
  await aws.sweep();
  expect(aws.queued()).toHaveLength(8);
  await aws.lose();
  const letGo = upstream.hold();
  const two = [aws.container(), aws.container()].map((one) => one.invoke(wakeEvent()));
  await upstream.waitForRequests(2);
  await aws.sweep();
  expect(aws.queued()).toHaveLength(6);
  letGo();
  await Promise.all(two);
  await aws.drain();
  await expectOnce(id, 30);
  await aws.sweep({ housekeep: true });
  expect(aws.queued()).toEqual([]);
});

test('takes back the items of an invocation that was killed, and runs them again', async () => {
  const letGo = upstream.hold();
  const id = await submit(3, 'killed');
  await aws.lose();
  const killed = aws.container();
  void killed.invoke(wakeEvent()).catch(() => {});
  await upstream.waitForRequests(1);
  // The traces of a kill: a lease without heartbeats, items that run, and a closed connection.
  killed.app()!.db.query = () => new Promise(() => {});
  killed.app()!.db.transaction = () => new Promise(() => {});
  await sql("update workers set beat_at = clock_timestamp() - interval '31 seconds'");
  await vi.waitUntil(
    async () => {
      await aws.sweep();
      return (await leases()) === 0; // Postgres itself is young: nobody is rescued in its first 30 s
    },
    { timeout: 60_000, interval: 500 },
  );
  letGo();
  await aws.drain();
  expect(await countsOf(id)).toEqual({ completed: 3 });
  const [events] = await sql('select count(*)::int as n from usage_events where batch_id = $1::uuid', [id]);
  expect(events).toEqual({ n: 3 });
}, 90_000);

test('aborts the running items of a cancelled batch with the next beat', async () => {
  const id = await submit(1, 'cancel', 'hang');
  const invocation = aws.container().invoke(wakeEvent());
  await upstream.waitForRequests(1);
  const answer = await aws.call({ method: 'POST', path: `/v1/batches/${id}/cancel` });
  expect([answer.status, answer.json]).toEqual([200, { status: 'cancelled' }]);
  await upstream.waitForClosedEarly();
  await invocation;
  expect(await countsOf(id)).toEqual({ cancelled: 1 });
});

test('answers 503 schema_outdated until the migrations were run, and gives its message back', async () => {
  const old = await createTestDatabase();
  const platform = await startPlatform({ ...old, catalog: join(dir, 'catalog.yaml'), env: KEYS });
  const [newest] = (
    await old.db.query<{ version: number }>({
      name: 'forget_newest',
      text: `with gone as (delete from schema_migrations
             where version = (select max(version) from schema_migrations) returning *) select * from gone`,
      values: [],
    })
  ).rows as unknown as [Record<string, unknown>];
  const refused = await platform.call({ path: '/v1/batches?surface=relay' });
  expect([refused.status, refused.json.error.code, refused.headers.get('retry-after')]).toEqual([
    503,
    'schema_outdated',
    '5',
  ]);
  expect((await platform.call({ path: '/healthz', as: null })).status).toBe(503);
  const event = wakeEvent();
  const one = platform.container();
  expect(await one.invoke(event)).toEqual({ batchItemFailures: [{ itemIdentifier: event.Records[0]!.messageId }] });
  const names = Object.keys(newest);
  await old.db.query({
    name: 'put_back',
    text: `insert into schema_migrations (${names.join(',')}) values (${names.map((_, i) => `$${i + 1}`).join(',')})`,
    values: Object.values(newest),
  });
  expect((await platform.call({ path: '/v1/batches?surface=relay' })).status).toBe(200);
  expect(await one.invoke(event)).toEqual({ batchItemFailures: [] });
  await platform.close();
  await old.close();
});

test('sees a catalogue change with the next request that comes a second later', async () => {
  const { applyCatalog } = await import('../../../lib/catalog/apply.ts');
  const { readCatalog } = await import('../../../lib/catalog/read.ts');
  const path = join(dir, 'more.yaml');
  expect((await aws.call({ path: '/v1/batches?surface=relay', as: 'eve' })).status).toBe(401);
  await writeFile(
    path,
    'kind: Key\nmetadata: {name: eve}\nspec: {policy: p, valueFrom: {kind: env, env: RELAY_KEY_EVE}}',
  );
  const env = { ...aws.env, RELAY_KEY_EVE: plaintextOf('eve') };
  await applyCatalog(database.db, await readCatalog([path]), { env, secretBox: null });
  await vi.waitUntil(async () => (await aws.call({ path: '/v1/batches?surface=relay', as: 'eve' })).status === 200, {
    timeout: 10_000,
  });
});

test('progress waits 5 minutes for an invocation before it says that no worker comes', async () => {
  const id = await submit(3, 'progress');
  const progress = async () => (await aws.call({ path: `/v1/batches/${id}/progress` })).json;
  await sql("update worker_ends set ended_at = clock_timestamp() - interval '1 day'");
  expect(await progress()).toMatchObject({ state: 'waiting', waiting: 3, reasons: [{ reason: 'slots', items: 3 }] });
  await sql("update batches set created_at = created_at - interval '6 minutes' where id = $1::uuid", [id]);
  const text = 'no worker was invoked for 5 minutes';
  expect((await progress()).reasons).toMatchObject([{ reason: 'no_worker', text, items: 3 }]);
  await sql(
    'insert into worker_ends values (true, clock_timestamp()) on conflict (invocation) do update set ended_at = excluded.ended_at',
  );
  expect((await progress()).reasons).toMatchObject([{ reason: 'slots', items: 3 }]);
  await sql('delete from worker_ends');
  await aws.drain();
  expect(await progress()).toMatchObject({ state: 'ended', completed: 3, reasons: [] });
  expect(await sql('select invocation from worker_ends')).toEqual([{ invocation: true }]);
  expect((await aws.call({ path: `/v1/batches/${id}/progress`, as: 'bob' })).status).toBe(404);
});
