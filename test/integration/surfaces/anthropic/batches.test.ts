import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createS3Store } from '../../../../lib/payloads/s3-store.ts';
import { createBucket, startFaux, TEST_CLIENT } from '../../../support/aws.ts';
import {
  createMessageBatchesApi,
  type MessageBatchesApi,
  type MessageOutcome,
} from '../../../support/message-batches.ts';
import { type Answer, WAYS } from '../../../support/native-api.ts';

const PATH = '/v1/messages/batches';
const NONE = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 };

const done = (idx: number, body = `{"n":${idx}}`): MessageOutcome => ({ idx, state: 'completed', body });
const failed = (idx: number, more: Partial<MessageOutcome> = {}): MessageOutcome => ({
  idx,
  state: 'discarded',
  error: 'batch item: upstream status 500',
  status: 500,
  errorKind: 'upstream_error',
  ...more,
});

const create = async (api: MessageBatchesApi, count: number, as = 'ann'): Promise<string> => {
  const requests = Array.from({ length: count }, (_, i) => ({ custom_id: `r-${i}`, params: {} }));
  const { json } = await api.call('node', { method: 'POST', path: PATH, body: JSON.stringify({ requests }), as });
  return json.id;
};
const ended = async (api: MessageBatchesApi, outcomes: readonly MessageOutcome[]): Promise<string> => {
  const id = await create(api, outcomes.length);
  await api.finish(id, outcomes);
  expect(await api.compact(id)).toBe(true);
  return id;
};

let api: MessageBatchesApi;
beforeAll(async () => {
  api = await createMessageBatchesApi();
});
afterAll(() => api.close());

describe.each(WAYS)('over %s', (way) => {
  const get = (id: string, as = 'ann') => api.call(way, { path: `${PATH}/${id}`, as });
  const results = (id: string, as = 'ann') => api.call(way, { path: `${PATH}/${id}/results`, as });
  const remove = (id: string, as = 'ann') => api.call(way, { method: 'DELETE', path: `${PATH}/${id}`, as });
  const cancel = (id: string, more: object = {}) =>
    api.call(way, { method: 'POST', path: `${PATH}/${id}/cancel`, ...more });
  const expectError = (answer: Answer, status: number, type: string) =>
    expect([answer.status, answer.json.type, answer.json.error?.type]).toEqual([status, 'error', type]);

  test('counts everything as processing until the results are written, then each by its type', async () => {
    const id = await create(api, 5);
    const open = (await get(id)).json;
    expect(open).toMatchObject({ processing_status: 'in_progress', request_counts: { ...NONE, processing: 5 } });
    await api.finish(id, [
      done(0),
      failed(1),
      { idx: 2, state: 'cancelled' },
      { idx: 3, state: 'discarded', error: 'batch item: expired', errorKind: 'timeout' },
    ]);
    expect((await get(id)).json).toEqual(open);
    await api.finish(id, [done(4)]);
    expect((await get(id)).json).toEqual(open); // final, but there is nothing to read yet
    expectError(await results(id), 404, 'not_found_error');

    expect(await api.compact(id)).toBe(true);
    const { json } = await get(id);
    expect(json).toMatchObject({
      processing_status: 'ended',
      request_counts: { processing: 0, succeeded: 2, errored: 1, canceled: 1, expired: 1 },
      cancel_initiated_at: null,
      results_url: expect.stringMatching(new RegExp(`^http://[^/]+${PATH}/${id}/results$`)),
    });
    expect(Object.keys(json)).toEqual(Object.keys(open));
    expect(Date.parse(json.ended_at)).toBeGreaterThanOrEqual(Date.parse(json.created_at));
    expect(await api.compact(id)).toBe(false);
  });

  test('gives a line for each request, in their order, the answers byte for byte', async () => {
    const answer = '{"b":1, "a":9007199254740993,"t":"\\ud800 \u2028é\\n"}';
    const upstream =
      '{"type":"error","error":{"type":"rate_limit_error","message":"slow\\u0020down"},"request_id":"req_7"}';
    const id = await ended(api, [
      done(0, answer),
      failed(1, { body: upstream, status: 429 }),
      failed(2, { body: '<html>', status: 503 }),
      { idx: 3, state: 'discarded', error: 'batch item: route "x": model not found', errorKind: 'model_not_found' },
      { idx: 4, state: 'cancelled' },
      { idx: 5, state: 'discarded', error: 'batch item: expired', errorKind: 'timeout' },
      done(6, '{\n  "x": 1\r\n}\n'),
    ]);
    const { status, headers, text } = await results(id);
    expect([status, headers.get('content-type')]).toEqual([200, 'application/x-jsonl']);
    const hex = id.slice('msgbatch_01'.length);
    const error = (type: string, message: string, requestId: string) =>
      `"result":{"type":"errored","error":{"type":"error","error":{"type":"${type}","message":${message}},` +
      `"request_id":"${requestId}"}}`;
    expect(text.split('\n')).toEqual([
      `{"custom_id":"r-0","result":{"type":"succeeded","message":${answer}}}`,
      `{"custom_id":"r-1",${error('rate_limit_error', '"slow\\u0020down"', 'req_7')}}`,
      `{"custom_id":"r-2",${error('api_error', '"upstream status 500"', `req_${hex}_2`)}}`,
      `{"custom_id":"r-3",${error('not_found_error', '"route \\"x\\": model not found"', `req_${hex}_3`)}}`,
      '{"custom_id":"r-4","result":{"type":"canceled"}}',
      '{"custom_id":"r-5","result":{"type":"expired"}}',
      '{"custom_id":"r-6","result":{"type":"succeeded","message":{   "x": 1  } }}',
      '',
    ]);
    for (const line of text.trimEnd().split('\n')) JSON.parse(line);
  });

  test('takes the results URL from the public URL where one is set', async () => {
    const other = await createMessageBatchesApi({ app: { publicUrl: 'https://relay.example/base/' } });
    const id = await ended(other, [done(0)]);
    const { json } = await other.call(way, { path: `${PATH}/${id}` });
    expect(json.results_url).toBe(`https://relay.example/base${PATH}/${id}/results`);
    await other.close();
  });

  test('cancels what waits, twice over, and says so until the end', async () => {
    const id = await create(api, 3);
    await api.finish(id, [done(1)]);
    await api.native.sql(
      "update batch_items set state = 'running', worker_id = $1::uuid where batch_id = $1::uuid and idx = 0",
      [api.uuidOf(id)],
    );
    const first = await cancel(id, { body: '', headers: { 'content-type': 'application/json' } });
    expect(first.json).toMatchObject({
      processing_status: 'canceling',
      request_counts: { ...NONE, processing: 3 },
      results_url: null,
      ended_at: null,
    });
    expect(Date.parse(first.json.cancel_initiated_at)).toBeGreaterThanOrEqual(Date.parse(first.json.created_at));
    const again = await cancel(id, { body: 'no json', headers: { 'content-type': 'text/plain' } });
    expect([again.status, again.json]).toEqual([200, first.json]);
    expect((await get(id)).json).toEqual(first.json);
    expect(api.native.wakes.at(-1)).toEqual({ kind: 'cancel', batchId: api.uuidOf(id) });

    await api.finish(id, [{ idx: 0, state: 'cancelled' }]);
    await api.compact(id);
    expect((await get(id)).json).toMatchObject({
      processing_status: 'ended',
      request_counts: { ...NONE, succeeded: 1, canceled: 2 },
      cancel_initiated_at: first.json.cancel_initiated_at,
    });
    const types = (await results(id)).text
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line).result.type);
    expect(types).toEqual(['canceled', 'succeeded', 'canceled']);
    expectError(await cancel(id), 400, 'invalid_request_error');
  });

  test('ends a batch at once whose cancel leaves nothing to run', async () => {
    const id = await create(api, 2);
    expect((await cancel(id)).json.processing_status).toBe('canceling');
    await expect.poll(async () => (await get(id)).json.processing_status).toBe('ended');
    const { json } = await get(id);
    expect(json.request_counts).toEqual({ ...NONE, canceled: 2 });
    expect(Date.parse(json.ended_at)).toBeGreaterThanOrEqual(Date.parse(json.cancel_initiated_at));
  });

  test('deletes an ended batch with its objects, and no other', async () => {
    const id = await create(api, 1);
    expectError(await remove(id), 400, 'invalid_request_error');
    await api.finish(id, [done(0)]);
    expectError(await remove(id), 400, 'invalid_request_error');
    await api.compact(id);
    const [row] = await api.native.sql('select * from batches where id = $1::uuid', [api.uuidOf(id)]);
    expectError(await remove(id, 'bob'), 404, 'not_found_error');
    const { status, json } = await remove(id);
    expect([status, json]).toEqual([200, { id, type: 'message_batch_deleted' }]);
    for (const [kind, object] of [
      ['input', row!.input_id],
      ['custom_ids', row!.custom_ids_id],
      ['result', row!.results_id],
    ] as const) {
      expect(await api.objects(kind)).not.toContain(object);
    }
    const left =
      'select 1 from batch_items where batch_id = $1::uuid union all select 1 from batches where id = $1::uuid';
    expect(await api.native.sql(left, [api.uuidOf(id)])).toEqual([]);
    for (const answer of [await get(id), await results(id), await remove(id), await cancel(id)]) {
      expectError(answer, 404, 'not_found_error');
    }
  });

  test("answers another's id, an unknown one and what is none alike", async () => {
    const foreign = await ended(api, [done(0)]);
    const native = await api.native.call('node', {
      method: 'POST',
      path: '/v1/batches',
      body: '{"shape":"anthropic","requests":[{}]}',
      as: 'bob',
    });
    const ids = [
      foreign,
      `msgbatch_01${'0'.repeat(32)}`,
      `msgbatch_01${native.json.id.replaceAll('-', '')}`,
      ...['msgbatch_01', foreign.toUpperCase(), foreign.slice(11), 'x', '%00', `${foreign}0`],
    ];
    for (const id of ids) {
      const path = `${PATH}/${id}`;
      for (const [method, end] of [
        ['GET', ''],
        ['GET', '/results'],
        ['POST', '/cancel'],
        ['DELETE', ''],
      ] as const) {
        const answer = await api.call(way, { method, path: path + end, as: 'bob' });
        expectError(answer, 404, 'not_found_error');
        expect(answer.json.error.message).toBe('not found');
      }
    }
    expect((await get(foreign)).status).toBe(200);
  });

  test('asks for a key on every route', async () => {
    const id = `${PATH}/msgbatch_01${'0'.repeat(32)}`;
    for (const [method, path] of [
      ['GET', PATH],
      ['GET', id],
      ['GET', `${id}/results`],
      ['POST', `${id}/cancel`],
      ['DELETE', id],
    ] as const) {
      expectError(await api.call(way, { method, path, as: 'gone' }), 401, 'authentication_error');
    }
  });

  describe('the list', () => {
    let own: MessageBatchesApi;
    let ids: string[];
    const list = async (query: string, as = 'ann') => (await own.call(way, { path: `${PATH}${query}`, as })).json;
    const idsOf = (page: { data: { id: string }[] }) => page.data.map(({ id }) => ids.indexOf(id));

    beforeAll(async () => {
      own = await createMessageBatchesApi();
      ids = [];
      for (let i = 0; i < 7; i++) ids.unshift(await create(own, 1));
      await create(own, 1, 'bob');
      // Times of replicas whose clocks differ: the ids alone say the order.
      ids.sort().reverse();
      const uuids = ids.map(own.uuidOf);
      await own.native.sql("update batches set created_at = '2026-01-01T00:00:00.123456Z' where id = any($1::uuid[])", [
        uuids.slice(2, 5),
      ]);
      await own.native.sql("update batches set created_at = '2025-01-01T00:00:00Z' where id = $1::uuid", [uuids[0]]);
      await own.native.sql("update batches set created_at = '2025-06-01T00:00:00Z' where id = any($1::uuid[])", [
        uuids.slice(5),
      ]);
    });
    afterAll(() => own.close());

    test('has the newest first, only those of the owner', async () => {
      const page = await list('');
      expect(Object.keys(page)).toEqual(['data', 'has_more', 'first_id', 'last_id']);
      expect(idsOf(page)).toEqual([0, 1, 2, 3, 4, 5, 6]);
      expect([page.has_more, page.first_id, page.last_id]).toEqual([false, ids[0], ids[6]]);
      expect(page.data[0]).toEqual((await own.call(way, { path: `${PATH}/${ids[0]}` })).json);
      expect(await list('?beta=true', 'none')).toEqual({ data: [], has_more: false, first_id: null, last_id: null });
    });

    test.each([1, 2, 3, 7])('is whole in pages of %i, in both directions', async (limit) => {
      const forward: number[] = [];
      let page = await list(`?limit=${limit}`);
      for (;;) {
        forward.push(...idsOf(page));
        if (!page.has_more) break;
        page = await list(`?limit=${limit}&after_id=${page.last_id}`);
      }
      expect(forward).toEqual([0, 1, 2, 3, 4, 5, 6]);
      const back: number[] = [];
      page = await list(`?limit=${limit}&before_id=${ids[6]}`);
      for (;;) {
        back.unshift(...idsOf(page));
        if (!page.has_more) break;
        page = await list(`?limit=${limit}&before_id=${page.first_id}`);
      }
      expect(back).toEqual([0, 1, 2, 3, 4, 5]);
    });

    test('gives the nearest newer page before an id, newest first', async () => {
      const page = await list(`?limit=2&before_id=${ids[5]}`);
      expect([idsOf(page), page.has_more]).toEqual([[3, 4], true]);
      expect(await list(`?before_id=${ids[0]}`)).toMatchObject({ data: [], has_more: false, first_id: null });
    });

    test('skips nothing behind a batch that was deleted', async () => {
      const other = await createMessageBatchesApi();
      const made: string[] = [];
      for (let i = 0; i < 5; i++) made.push(await create(other, 1));
      made.sort().reverse();
      // The id is of the replica's clock, the time of creation of the database's.
      await other.native.sql("update batches set created_at = created_at - interval '1 hour'");
      await other.native.sql('delete from batches where id = $1::uuid', [other.uuidOf(made[2]!)]);
      const after = await other.call(way, { path: `${PATH}?after_id=${made[2]}` });
      expect(after.json.data.map(({ id }: { id: string }) => id)).toEqual(made.slice(3));
      const before = await other.call(way, { path: `${PATH}?before_id=${made[2]}` });
      expect(before.json.data.map(({ id }: { id: string }) => id)).toEqual(made.slice(0, 2));
      await other.close();
    });

    test("goes on from an id that is gone, or another's, by its age", async () => {
      const future = `msgbatch_01${'f'.repeat(32)}`;
      expect(idsOf(await list(`?after_id=${future}`))).toHaveLength(7);
      expect(idsOf(await list(`?before_id=msgbatch_01${'0'.repeat(32)}`))).toHaveLength(7);
      expect(idsOf(await list(`?before_id=${future}`))).toEqual([]);
    });

    test.each([
      ['limit=0', 'limit'],
      ['limit=1001', 'limit'],
      ['limit=abc', 'limit'],
      ['limit=', 'limit'],
      ['limit=1&limit=2', 'limit'],
      ['after_id=x', 'after_id'],
      ['before_id=', 'before_id'],
      ['before_id=ID&after_id=ID', 'before_id'],
    ])('refuses %s', async (query, name) => {
      const answer = await own.call(way, { path: `${PATH}?${query.replaceAll('ID', ids[0]!)}` });
      expectError(answer, 400, 'invalid_request_error');
      expect(answer.json.error.message.startsWith(name)).toBe(true);
    });

    test('takes the largest limit', async () => {
      expect(idsOf(await list('?limit=1000'))).toHaveLength(7);
    });
  });
});

describe('writing results', () => {
  test('is given up when an answer cannot be read, and leaves the batch as it was', async () => {
    const id = await create(api, 2);
    await api.finish(id, [done(0), done(1)]);
    const before = await api.objects('result');
    await api.native.sql('update batch_items set output_crc = 1 where idx = 1 and batch_id = $1::uuid', [
      api.uuidOf(id),
    ]);
    await expect(api.compact(id)).rejects.toThrow('checksum mismatch');
    const { json } = await api.call('node', { path: `${PATH}/${id}` });
    expect(json.processing_status).toBe('in_progress');
    expect(await api.objects('result')).toEqual(before);
  });

  test('by two replicas at once ends the batch once, with one object', async () => {
    const id = await create(api, 3);
    await api.finish(id, [done(0), done(1), done(2)]);
    const before = (await api.objects('result')).length;
    const wins = await Promise.all([api.compact(id), api.compact(id), api.compact(id)]);
    expect(wins.sort()).toEqual([false, false, true]);
    expect((await api.objects('result')).length).toBe(before + 1);
    const { json } = await api.call('node', { path: `${PATH}/${id}` });
    expect(json.request_counts).toEqual({ ...NONE, succeeded: 3 });
  });
});

describe('on S3', () => {
  test('results over 4.5 MB are fetched through a link on Lambda, and streamed in the container', async () => {
    const server = await startFaux();
    await createBucket(server.endpoint, 'payloads');
    const payloads = createS3Store({ bucket: 'payloads', prefix: '', endpoint: server.endpoint, client: TEST_CLIENT });
    const s3 = await createMessageBatchesApi({ payloads });
    const large = Array.from({ length: 5 }, (_, i) => done(i, `{"x":"${'é'.repeat(500_000)}"}`));
    const id = await ended(s3, large);
    const small = await ended(s3, [done(0)]);
    const results = (way: 'node' | 'lambda', of: string) => s3.call(way, { path: `${PATH}/${of}/results` });
    const redirect = await results('lambda', id);
    expect([redirect.status, redirect.text]).toEqual([303, '']);
    const linked = await fetch(redirect.headers.get('location')!);
    // The content type that S3 then answers with; the server of the tests has only the object's own type.
    const { searchParams } = new URL(redirect.headers.get('location')!);
    expect(searchParams.get('response-content-type')).toBe('application/x-jsonl');
    const streamed = await results('node', id);
    expect(streamed.headers.get('content-type')).toBe('application/x-jsonl');
    expect(Buffer.from(await linked.arrayBuffer()).equals(streamed.bytes)).toBe(true);
    expect(streamed.text.split('\n').map((line) => line.length)).toEqual([
      ...Array(5).fill(streamed.text.indexOf('\n')),
      0,
    ]);
    expect((await results('lambda', small)).text).toBe(
      '{"custom_id":"r-0","result":{"type":"succeeded","message":{"n":0}}}\n',
    );
    await s3.close();
    await payloads.close();
    await server.stop();
  });
});
