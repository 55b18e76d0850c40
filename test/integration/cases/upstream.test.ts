import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { WAYS } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';

let service: Service;
/** The same with a time limit of one second an item. */
let impatient: Service;

beforeAll(async () => {
  [service, impatient] = await Promise.all([
    startService(),
    startService({ env: { RELAY_BATCH_ITEM_TIMEOUT_S: '1', RELAY_BATCH_CONCURRENCY: '4' } }),
  ]);
});
afterAll(() => Promise.all([service.close(), impatient.close()]));
beforeEach(async () => {
  service.upstream.forget();
  service.upstream.answerWith(null);
  for (const key of ['sk-host-one', 'sk-host-two']) service.upstream.failKey(key, null);
  for (const name of ['one', 'two']) await service.app.pool.reset(service.app.catalog().hostKeys.get(name)!);
});

/** Directive, error text, and what its event says. */
const FAULTS: [directive: string, error: string, status: number, kind: string][] = [
  ['status-400', 'upstream status 400', 400, 'upstream_error'],
  ['status-404', 'upstream status 404', 404, 'upstream_error'],
  ['status-422', 'upstream status 422', 422, 'upstream_error'],
  ['status-401', 'upstream status 401', 401, 'upstream_error'],
  ['status-403', 'upstream status 403', 403, 'upstream_error'],
  ['status-500', 'upstream status 500', 500, 'upstream_error'],
  ['status-529', 'upstream status 529', 529, 'upstream_error'],
  ['retry-after-1', 'upstream status 429', 429, 'upstream_error'],
  ['retry-after-999999999999999', 'upstream status 429', 429, 'upstream_error'],
  ['redirect', 'upstream status 302', 302, 'upstream_error'],
  ['html-503', 'upstream status 503', 503, 'upstream_error'],
  ['gzip-400', 'upstream status 400', 400, 'upstream_error'],
  ['br-500', 'upstream status 500', 500, 'upstream_error'],
  ['html-200', 'upstream answered 200 with a body that is not JSON', 200, 'bad_response'],
  ['empty-200', 'upstream answered 200 with a body that is not JSON', 200, 'bad_response'],
  ['half-200', 'upstream answered 200 with a body that is not JSON', 200, 'bad_response'],
  ['latin1-200', 'upstream answered 200 with a body that is not JSON', 200, 'bad_response'],
  ['bom-200', 'upstream answered 200 with a body that is not JSON', 200, 'bad_response'],
  ['null-200', 'upstream answered 200 with a body that is no response', 200, 'bad_response'],
  ['array-201', 'upstream answered 201 with a body that is no response', 201, 'bad_response'],
  ['string-200', 'upstream answered 200 with a body that is no response', 200, 'bad_response'],
  ['error-in-200', 'upstream answered 200 with an error: slow down', 200, 'bad_response'],
  ['error-in-202', 'upstream answered 202 with an error: slow down', 202, 'bad_response'],
  ['refusal-in-200', 'upstream answered 200 with an error: no such engine', 200, 'bad_response'],
  ['cut', 'connection to upstream lost', 200, 'upstream_error'],
  ['cut-chunked', 'connection to upstream lost', 200, 'upstream_error'],
  ['reset', 'connection to upstream lost', 0, 'upstream_error'],
  ['drop', 'connection to upstream lost', 0, 'upstream_error'],
  ['garbage', 'connection to upstream lost', 0, 'upstream_error'],
];

describe.each(WAYS)('over %s', (way) => {
  test('cases 10 and 11: every broken answer is a failed item with its text, and spoils no other', async () => {
    const items = FAULTS.flatMap(([model]) => [{ model }, { model: 'any' }]);
    const { id, results } = await service.run(way, items);
    const expected = FAULTS.flatMap(([, error], i) => [
      { idx: 2 * i, state: 'discarded', error: `batch item: ${error}` },
      { idx: 2 * i + 1, state: 'completed', response: expect.objectContaining({ model: 'any' }) },
    ]);
    expect(results).toEqual(expected);
    const events = await service.events(id);
    for (const [i, [model, error, status, kind]] of FAULTS.entries()) {
      expect(events[2 * i], model).toMatchObject({
        status,
        error_kind: kind,
        error_message: error,
        attempts: 1,
        requested_model: model,
        host: 'up',
        cost: null,
        tokens_input: null,
      });
      expect(events[2 * i + 1]).toMatchObject({ status: 200, error_kind: null, attempts: 1 });
    }
  });

  test('case 11: encoded answers are decoded, and an error beside results is a response', async () => {
    const { results, answer } = await service.run(way, [
      { model: 'gzip' },
      { model: 'br' },
      { model: 'zstd' },
      { model: 'error-beside-200' },
    ]);
    expect(results.map(({ state }) => state)).toEqual(Array(4).fill('completed'));
    expect(results.map(({ response }) => response.choices.length)).toEqual([1, 1, 1, 1]);
    expect(answer.headers.get('content-encoding')).toBeNull();
  });

  test.each(['openai', 'openai_responses', 'anthropic'] as const)(
    'case 10: an error inside a 200 fails the item in the shape %s too',
    async (shape) => {
      const { results } = await service.run(way, [{ model: 'error-in-200' }, { model: 'error-beside-200' }], { shape });
      const text = 'batch item: upstream answered 200 with an error: slow down';
      expect(results.map(({ error }) => error)).toEqual([text, undefined]);
    },
  );

  test('a host that refuses every dial is unreachable after three', async () => {
    const { id, results } = await service.run(way, [{ model: 'lost' }]);
    expect(results[0]!.error).toBe('batch item: upstream "lost" unreachable after 3 attempts');
    expect((await service.events(id))[0]).toMatchObject({ status: 0, error_kind: 'upstream_unreachable', attempts: 1 });
  });

  test('a response larger than 64 MiB is discarded', async () => {
    const { id, results } = await service.run(way, [{ model: 'big-65' }]);
    expect(results[0]!.error).toBe('batch item: response larger than 64 MiB');
    expect((await service.events(id))[0]).toMatchObject({ status: 200, error_kind: 'bad_response' });
  });

  test('case 13: an upstream that never ends is given up at the time limit, and the slots come back', async () => {
    const slow = ['hang', 'hang-body', 'drip'];
    const { id, results } = await impatient.run(way, [
      ...slow.map((model) => ({ model })),
      ...Array.from({ length: 8 }, () => ({ model: 'any' })),
    ]);
    expect(results.map(({ state }) => state)).toEqual([...Array(3).fill('discarded'), ...Array(8).fill('completed')]);
    for (const { error } of results.slice(0, 3)) expect(error).toBe('batch item: timed out after 1s');
    expect((await impatient.events(id)).slice(0, 3).map((event) => event.error_kind)).toEqual(Array(3).fill('timeout'));
    await impatient.upstream.waitForClosedEarly(({ model }) => model === 'hang');
  });

  test('case 18: one key’s storm leaves the items to the other keys', async () => {
    service.upstream.failKey('sk-host-one', 429, { 'retry-after': '60' });
    const { id, results } = await service.run(
      way,
      Array.from({ length: 40 }, () => ({ model: 'keyed' })),
    );
    expect(results.map(({ state }) => state)).toEqual(Array(40).fill('completed'));
    expect((await service.events(id)).map((event) => event.host_key)).toEqual(Array(40).fill('two'));
    // The breaker of the first is open: only calls that were under way together have met it.
    expect(service.upstream.countOf('key', 'sk-host-one')).toBeLessThanOrEqual(8);
  });

  test('every key that fails is tried once, and the last failure gives the text', async () => {
    service.upstream.failKey('sk-host-one', 401);
    service.upstream.failKey('sk-host-two', 503);
    const { id, results } = await service.run(way, [{ model: 'keyed' }]);
    expect(results[0]!.error).toBe('batch item: upstream status 503');
    expect((await service.events(id))[0]).toMatchObject({ status: 503, attempts: 2, host_key: 'two' });
    expect(service.upstream.received.map(({ key }) => key)).toEqual(['sk-host-one', 'sk-host-two']);
  });

  test('keys that are all refused for good leave no healthy key', async () => {
    for (const key of ['sk-host-one', 'sk-host-two']) service.upstream.failKey(key, 401);
    await service.run(way, [{ model: 'keyed' }]);
    service.upstream.forget();
    const { id, results } = await service.run(way, [{ model: 'keyed' }]);
    expect(results[0]!.error).toBe('batch item: no healthy keys in pool');
    expect((await service.events(id))[0]).toMatchObject({ status: 0, error_kind: 'keys_exhausted', attempts: 0 });
    expect(service.upstream.received).toHaveLength(0);
  });

  test('case 12: a long Retry-After on every key makes items wait without a slot', async () => {
    for (const key of ['sk-host-one', 'sk-host-two']) service.upstream.failKey(key, 429, { 'retry-after': '120' });
    const first = await service.run(way, [{ model: 'keyed' }]);
    expect(first.results[0]!.error).toBe('batch item: upstream status 429');
    service.upstream.forget();
    const waiting = await service.submit(
      way,
      Array.from({ length: 30 }, () => ({ model: 'keyed' })),
    );
    const { results } = await service.run(
      way,
      Array.from({ length: 30 }, () => ({ model: 'any' })),
    );
    expect(results.every(({ state }) => state === 'completed')).toBe(true);
    expect(service.upstream.received.filter(({ model }) => model === 'keyed')).toHaveLength(0);
    const cancelled = await service.call(way, { method: 'POST', path: `/v1/batches/${waiting}/cancel` });
    expect(cancelled.status).toBe(200);
    await service.finished(waiting);
    const { json } = await service.call(way, { path: `/v1/batches/${waiting}?items=false` });
    expect(json.counts).toEqual({ cancelled: 30 });
  });

  test('case 37: 500s on every key while many items wait pause them, they do not fail', async () => {
    for (const key of ['sk-host-one', 'sk-host-two']) service.upstream.failKey(key, 500);
    const id = await service.submit(
      way,
      Array.from({ length: 100 }, () => ({ model: 'keyed' })),
    );
    await service.upstream.waitForRequests(6);
    for (const key of ['sk-host-one', 'sk-host-two']) service.upstream.failKey(key, null);
    await service.finished(id);
    const { json } = await service.call(way, { path: `/v1/batches/${id}?items=false` });
    // At most what was in the slots at that moment has failed.
    expect(json.counts.completed).toBeGreaterThanOrEqual(92);
    expect((json.counts.discarded ?? 0) + json.counts.completed).toBe(100);
  });

  test('case 21: a batch of failures only ends like any other', async () => {
    const { id } = await service.run(
      way,
      Array.from({ length: 50 }, () => ({ model: 'status-400' })),
    );
    const { json } = await service.call(way, { path: `/v1/batches/${id}` });
    expect(json.counts).toEqual({ discarded: 50 });
    expect(json.CompletedAt).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
    expect(json.Status).toBe('queued');
  });
});
