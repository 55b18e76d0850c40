import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { findBatch } from '../../../lib/batch/batches.sql.ts';
import { compactBatch } from '../../../lib/batch/results/compact.ts';
import { renderResults } from '../../../lib/batch/results/results.ts';
import { PayloadNotFound, type PayloadRef } from '../../../lib/payloads/payload-store.ts';
import { createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';
import { finish, type Outcome } from '../../support/outcomes.ts';

let api: NativeApi;
/** Called before each read of the payload store; what it throws is what the read meets. */
let onRead: (ref: PayloadRef) => unknown = () => {};

beforeAll(async () => {
  api = await createNativeApi((app) => ({
    payloads: {
      ...app.payloads,
      async read(ref, offset, length) {
        await onRead(ref);
        return app.payloads.read(ref, offset, length);
      },
      readMany: async () => null,
      async *stream(ref, offset, length) {
        await onRead(ref);
        yield* app.payloads.stream(ref, offset, length);
      },
    },
  }));
});
afterAll(() => api.close());
beforeEach(() => {
  onRead = () => {};
});

async function submitted(items: number): Promise<string> {
  const body = JSON.stringify({ shape: 'openai', requests: new Array(items).fill(0) });
  return (await api.call('lambda', { method: 'POST', path: '/v1/batches', body })).json.id;
}

async function finished(items: number, body: (idx: number) => string | Buffer, group = 100): Promise<string> {
  const id = await submitted(items);
  for (let from = 0; from < items; from += group) {
    const outcomes: Outcome[] = [];
    for (let idx = from; idx < Math.min(items, from + group); idx++) {
      outcomes.push({ idx, state: 'completed', body: body(idx) });
    }
    await finish(api, id, outcomes.reverse());
  }
  return id;
}

const compact = (id: string) => compactBatch({ ...api.app, payloads: api.payloads }, id);
const ids = (answer: { json: { results: { idx: number }[] } }) => answer.json.results.map((r) => r.idx);

/** Reads by the chunk, so that something can happen in between. */
async function reader(id: string) {
  const batches = await api.sql('select owner from batches where id = $1', [id]);
  const key = { surface: 'relay', owner: String(batches[0]!.owner), id };
  const batch = await findBatch(api.database.db, key);
  return renderResults(api.app, key, batch!, { after: -1, state: null, page: null });
}

const EVERY_STATE =
  '{"results":[{"idx":0,"state":"available"},{"idx":1,"state":"running"},' +
  '{"idx":2,"state":"completed","response":{"b":1, "a":9007199254740993,"a":"\\u0000\\ud800 \u2028"}},' +
  '{"idx":3,"state":"discarded","error":"batch item: route \\"gpt\\": model not found"},{"idx":4,"state":"cancelled"}]';

async function everyState(): Promise<string> {
  const id = await submitted(5);
  await finish(api, id, [
    { idx: 2, state: 'completed', body: '{"b":1, "a":9007199254740993,"a":"\\u0000\\ud800 \u2028"}' },
    { idx: 3, state: 'discarded', error: 'batch item: route "gpt": model not found' },
    { idx: 4, state: 'cancelled' },
  ]);
  await api.sql("update batch_items set state = 'running', worker_id = $1 where batch_id = $1 and idx = 1", [id]);
  return id;
}

describe.each(WAYS)('over %s', (way) => {
  const results = (id: string, query = '') => api.call(way, { path: `/v1/batches/${id}/results${query}` });

  test('gives every item at any time, the responses byte for byte', async () => {
    const answer = await results(await everyState());
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-type')).toBe('application/json');
    expect(answer.text).toBe(EVERY_STATE + (way === 'node' ? '}' : ',"next_after":null}'));
  });

  test('keeps bytes that are not valid UTF-8', async () => {
    const id = await finished(1, () => Buffer.from([0x22, 0xff, 0xfe, 0x22]));
    expect((await results(id)).bytes.includes(Buffer.from([0x22, 0xff, 0xfe, 0x22]))).toBe(true);
  });

  test.each(['items', 'document'])('pages through the %s without a gap or a repeat', async (source) => {
    const id = await finished(25, (idx) => `{"n":${idx}}`);
    if (source === 'document') expect(await compact(id)).toBe(true);
    const seen: number[] = [];
    let query = '?limit=10';
    for (;;) {
      const answer = await results(id, query);
      for (const { idx, state, response } of answer.json.results) {
        expect([state, response]).toEqual(['completed', { n: idx }]);
        seen.push(idx);
      }
      if (answer.json.next_after === null) break;
      expect(answer.json.results).toHaveLength(10);
      query = `?after=${answer.json.next_after}&limit=10`;
    }
    expect(seen).toEqual(Array.from({ length: 25 }, (_, i) => i));
    expect((await results(id, '?after=14&limit=10')).json.next_after).toBe(null);
    expect((await results(id, '?after=24')).text).toBe('{"results":[],"next_after":null}');
    expect((await results(id, '?after=2147483647')).text).toBe('{"results":[],"next_after":null}');
  });

  test('ends a page before it gets larger than 4.5 MB', async () => {
    const id = await finished(6, () => `"${'x'.repeat(1_400_000)}"`, 6);
    const first = await results(id, '?limit=6');
    expect([ids(first), first.json.next_after]).toEqual([[0, 1, 2], 2]);
    await compact(id);
    const second = await results(id, '?after=2');
    expect([ids(second), second.json.next_after]).toEqual([[3, 4, 5], null]);
  });

  test.each(['items', 'document'])('filters the %s by state', async (source) => {
    const id = await submitted(4);
    await finish(api, id, [
      { idx: 0, state: 'completed', body: '0' },
      { idx: 1, state: 'discarded', error: 'batch item: expired' },
      { idx: 2, state: 'completed', body: '2' },
      { idx: 3, state: 'cancelled' },
    ]);
    if (source === 'document') await compact(id);
    expect(ids(await results(id, '?state=completed'))).toEqual([0, 2]);
    expect(ids(await results(id, '?state=cancelled'))).toEqual([3]);
    expect(ids(await results(id, '?state=running'))).toEqual([]);
    const page = await results(id, '?state=completed&limit=1');
    expect([ids(page), page.json.next_after]).toEqual([[0], 0]);
    const last = await results(id, '?state=completed&limit=1&after=0');
    expect([ids(last), last.json.next_after]).toEqual([[2], null]);
  });

  test.each([
    ['limit=0', 'limit'],
    ['limit=10001', 'limit'],
    ['limit=1.5', 'limit'],
    ['after=-1', 'after'],
    ['after=', 'after'],
    ['after=99999999999', 'after'],
    ['state=done', 'state'],
    ['state=completed&state=running', 'state'],
  ])('refuses ?%s with 400 naming the parameter', async (query, param) => {
    const answer = await results(await submitted(1), `?${query}`);
    expect([answer.status, answer.json.error.code, answer.json.error.param]).toEqual([400, 'invalid_value', param]);
  });

  test('lets one spoilt response say so, and gives the rest', async () => {
    const id = await finished(5, (idx) => `"${idx}"`);
    await api.sql('update batch_items set output_crc = 1 where batch_id = $1 and idx = 1', [id]);
    await api.sql('update batch_items set output_offset = 1000000 where batch_id = $1 and idx = 3', [id]);
    const answer = await results(id);
    expect(answer.json.results).toEqual([
      { idx: 0, state: 'completed', response: '0' },
      { idx: 1, state: 'completed', error: 'batch item: load output: checksum mismatch' },
      { idx: 2, state: 'completed', response: '2' },
      { idx: 3, state: 'completed', error: 'batch item: load output: unreadable' },
      { idx: 4, state: 'completed', response: '4' },
    ]);
  });

  test('says of a lost segment that its items are not found, and reads the others', async () => {
    const id = await submitted(3);
    const lost = await finish(api, id, [{ idx: 1, state: 'completed', body: '"x"' }]);
    await finish(api, id, [
      { idx: 0, state: 'completed', body: '"a"' },
      { idx: 2, state: 'completed', body: '"b"' },
    ]);
    await api.payloads.delete([{ kind: 'segment', id: lost }]);
    const answer = await results(id);
    expect(answer.json.results.map((r: { error?: string; response?: string }) => r.error ?? r.response)).toEqual([
      'a',
      'batch item: load output: not found',
      'b',
    ]);
  });

  test('reads on after an error that passes', async () => {
    const id = await finished(2, (idx) => `"${idx}"`);
    let failures = 2;
    onRead = () => {
      if (failures-- > 0) throw Object.assign(new Error('stale handle /secret'), { code: 'ESTALE' });
    };
    expect((await results(id)).json.results.map((r: { response: string }) => r.response)).toEqual(['0', '1']);
  });

  test.each(['EIO', 'ESTALE', 'EACCES'])('asks to come again when the document of a batch meets %s', async (code) => {
    const id = await finished(3, (idx) => `"${idx}"`);
    await compact(id);
    onRead = () => {
      throw Object.assign(new Error(`${code} /secret`), { code });
    };
    const answer = await results(id);
    expect([answer.status, answer.json.error.code]).toEqual([503, 'not_ready']);
    expect(answer.headers.get('retry-after')).toBe('5');
    expect(answer.text).not.toContain('secret');
    onRead = () => {};
    expect(ids(await results(id))).toEqual([0, 1, 2]);
  });

  test('answers 404 when the batch is deleted before the first byte', async () => {
    const id = await finished(1, () => '1');
    onRead = async (ref) => {
      await api.sql('delete from batch_items where batch_id = $1', [id]);
      await api.sql('delete from batches where id = $1', [id]);
      throw new PayloadNotFound(ref.id);
    };
    const answer = await results(id);
    expect([answer.status, answer.json.error.code]).toEqual([404, 'not_found']);
  });
});

test('is the same document before and after compaction', async () => {
  const id = await finished(700, (idx) => `{"n":${idx},"t":"${'ü'.repeat(idx % 50)}"}`, 64);
  const live = await api.call('node', { path: `/v1/batches/${id}/results` });
  await compact(id);
  const compacted = await api.call('node', { path: `/v1/batches/${id}/results` });
  expect(compacted.bytes.equals(live.bytes)).toBe(true);
  expect(ids(compacted)).toHaveLength(700);
});

test('gives each item its own bytes, small and large in one segment, over several loads, in any order of finishing', async () => {
  const items = 1500;
  const sizes = [0, 1, 40, 2000, 9000, 70_000, 300_000, 1_100_000];
  const bodyOf = (idx: number) => {
    const size = idx % 97 === 0 ? sizes[5 + ((idx / 97) % 3)]! : sizes[idx % 5]!;
    return `"${idx}:${String.fromCharCode(97 + (idx % 26)).repeat(size)}"`;
  };
  const id = await submitted(items);
  for (let from = 0; from < items; from += 300) {
    const outcomes: Outcome[] = [];
    for (let idx = from; idx < from + 300; idx++) {
      if (idx % 7 !== 3) outcomes.push({ idx, state: 'completed', body: bodyOf(idx) });
    }
    // Of each ten, the first half in one segment and the second in the next: both spread over all loads of these idx.
    await finish(api, id, outcomes.filter(({ idx }) => idx % 10 < 5).reverse());
    await finish(
      api,
      id,
      outcomes.filter(({ idx }) => idx % 10 >= 5),
    );
  }
  const answer = await api.call('node', { path: `/v1/batches/${id}/results` });
  const elements = Array.from({ length: items }, (_, idx) =>
    idx % 7 === 3
      ? `{"idx":${idx},"state":"available"}`
      : `{"idx":${idx},"state":"completed","response":${bodyOf(idx)}}`,
  );
  expect(answer.bytes.equals(Buffer.from(`{"results":[${elements.join(',')}]}`))).toBe(true);
});

test('carries on from the same item when the batch is compacted and its segments go under the reader', async () => {
  const id = await finished(40, (idx) => `"${idx} ${'x'.repeat(300_000)}"`, 10);
  const whole = await api.call('node', { path: `/v1/batches/${id}/results` });
  const stream = await reader(id);
  const chunks: Buffer[] = [];
  for (let i = 0; i < 3; i++) chunks.push((await stream.next()).value);
  const segments = await api.sql('select distinct segment_id as id from batch_items where batch_id = $1', [id]);
  await compact(id);
  await api.payloads.delete(segments.map((s) => ({ kind: 'segment' as const, id: String(s.id) })));
  for await (const chunk of stream) chunks.push(chunk);
  expect(Buffer.concat(chunks).equals(whole.bytes)).toBe(true);
});

test.each(['items', 'document'])(
  'breaks the connection when the batch is deleted under a reader of its %s',
  async (source) => {
    const id = await finished(100, (idx) => `"${idx} ${'x'.repeat(300_000)}"`, 10);
    if (source === 'document') await compact(id);
    const segments = await api.sql('select distinct segment_id as id from batch_items where batch_id = $1', [id]);
    let reads = 0;
    onRead = async (ref) => {
      if (ref.kind === 'index' || ++reads < (source === 'items' ? 3 : 1)) return;
      await api.sql('delete from batch_items where batch_id = $1', [id]);
      await api.sql('delete from batches where id = $1', [id]);
      await api.payloads.delete(segments.map((s) => ({ kind: 'segment' as const, id: String(s.id) })));
      if (source === 'document') throw new PayloadNotFound(ref.id);
    };
    const stream = await reader(id);
    const read = async () => {
      let text = '';
      for await (const chunk of stream) text += chunk;
      return text;
    };
    await expect(read()).rejects.toThrow('not found');
  },
);

test('cuts the connection in mid-stream rather than end a document that is not whole', async () => {
  const id = await finished(60, (idx) => `"${idx} ${'x'.repeat(300_000)}"`, 60);
  let reads = 0;
  onRead = async () => {
    if (++reads === 3) {
      await api.sql('delete from batch_items where batch_id = $1', [id]);
      await api.sql('delete from batches where id = $1', [id]);
    }
    if (reads >= 3) throw new PayloadNotFound('gone');
  };
  await expect(api.call('node', { path: `/v1/batches/${id}/results` })).rejects.toThrow();
  expect((await api.call('node', { path: '/healthz' })).status).toBe(200);
});

test('case 24: streams 100 MB with little memory and back-pressure', async () => {
  const id = await finished(50, () => `"${'x'.repeat(2_000_000)}"`, 10);
  let inFlight = 0;
  let most = 0;
  const deps = {
    db: api.database.db,
    payloads: {
      ...api.payloads,
      async read(ref: PayloadRef, offset: number, length: number) {
        inFlight += length;
        most = Math.max(most, inFlight);
        return api.payloads.read(ref, offset, length);
      },
    },
  };
  const owner = String((await api.sql('select owner from batches where id = $1', [id]))[0]!.owner);
  const key = { surface: 'relay', owner, id };
  const batch = await findBatch(api.database.db, key);
  let total = 0;
  for await (const chunk of renderResults(deps, key, batch!, { after: -1, state: null, page: null })) {
    total += chunk.length;
    inFlight = Math.max(0, inFlight - chunk.length);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(total).toBeGreaterThan(100_000_000);
  expect(most).toBeLessThan(16 * 1024 * 1024);
});

test('replaces a response that no Lambda answer could hold by an error, so that paging goes on', async () => {
  const id = await finished(2, (idx) => (idx === 0 ? `"${'x'.repeat(5_000_000)}"` : '1'));
  const answer = await api.call('lambda', { path: `/v1/batches/${id}/results` });
  expect(answer.json.results).toEqual([
    { idx: 0, state: 'completed', error: 'batch item: load output: larger than one answer here can be' },
    { idx: 1, state: 'completed', response: 1 },
  ]);
  expect((await api.call('node', { path: `/v1/batches/${id}/results` })).bytes.length).toBeGreaterThan(5_000_000);
});
