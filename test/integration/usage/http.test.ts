import { afterAll, beforeAll, expect, test } from 'vitest';
import { bindEndpoints } from '../../../handlers/endpoint.ts';
import { USAGE_ENDPOINTS } from '../../../handlers/usage.ts';
import { hashKey } from '../../../lib/auth/keys.ts';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { plaintextOf } from '../../support/auth-catalog.ts';
import { createNativeApi, type NativeApi, type Served, WAYS, type Way } from '../../support/native-api.ts';
import { insertEvents, insertOwner } from '../../support/usage-events.ts';

let api: NativeApi;
let usage: Served;

beforeAll(async () => {
  api = await createNativeApi();
  usage = await api.serve(bindEndpoints(USAGE_ENDPOINTS, { ...api.app, db: api.database.db }));
  for (const [name, items] of [
    ['ann', 3],
    ['bob', 1],
  ] as const) {
    const batchId = uuidv7();
    await insertOwner(api.database.db, batchId, { owner: hashKey(plaintextOf(name)) });
    const ts = new Date(Date.now() - 60_000);
    await insertEvents(
      api.database.db,
      Array.from({ length: items }, (_, idx) => ({ batchId, idx, ts, finishReason: name })),
    );
  }
});

afterAll(() => api.close());

const call = (way: Way, path: string, as: string | null = 'ann') => usage.call(way, { path, as });

test.each(WAYS)('a caller sees its own usage and nobody else (%s)', async (way) => {
  const events = (await call(way, '/v1/usage/events')).json.events;
  expect(events.map((event: { finish_reason: string }) => event.finish_reason)).toEqual(['ann', 'ann', 'ann']);
  expect((await call(way, '/v1/usage/summary', 'bob')).json.rows).toMatchObject([{ requests: 1 }]);
  expect((await call(way, '/v1/usage/timeseries?interval=1h&finish_reason=ann', 'bob')).json.rows).toEqual([]);
  const other = hashKey(plaintextOf('ann'));
  expect((await call(way, `/v1/usage/events?relay_key_hash=${other}`, 'bob')).json).toEqual({
    events: [],
    next_cursor: null,
  });
});

test.each(WAYS)('a bad value is 400 and named, and nobody asks without a credential (%s)', async (way) => {
  const bad = await call(way, '/v1/usage/events?status=abc');
  expect(bad.status).toBe(400);
  expect(bad.json.error).toMatchObject({ type: 'invalid_request_error', code: 'invalid_value', param: 'status' });
  expect((await call(way, '/v1/usage/timeseries')).json.error).toMatchObject({
    code: 'missing_required_parameter',
    param: 'interval',
  });
  expect((await call(way, '/v1/usage/summary', null)).status).toBe(401);
});

test.each(WAYS)('times that no event can have are 400, at the ends of time are answered (%s)', async (way) => {
  for (const path of ['events', 'summary', 'timeseries?interval=999999999d']) {
    const ask = (query: string) => call(way, `/v1/usage/${path}${path.includes('?') ? '&' : '?'}${query}`);
    for (const param of ['from', 'to', 'ts']) {
      for (const time of ['1800-01-01T00:00:00Z', '0001-01-01T00:00:00Z', '9999-12-31T23:59:59-12:00']) {
        const { status, json } = await ask(`${param}=${time}`);
        expect([path, time, status, json.error?.param]).toEqual([path, time, 400, param]);
      }
    }
    for (const period of ['to=1970-01-01T00:00:00Z', 'from=1970-01-01T00:00:00Z&to=9999-12-31T23:59:59.999Z']) {
      expect((await ask(period)).status).toBe(200);
    }
  }
});

test.each(WAYS)('a cursor that no page answered with is 400 (%s)', async (way) => {
  const ask = (cursor: string) => call(way, `/v1/usage/events?limit=1&cursor=${encodeURIComponent(cursor)}`);
  const first = await call(way, '/v1/usage/events?limit=1');
  const cursor: string = first.json.next_cursor;
  expect((await ask(cursor)).status).toBe(200);
  const [from, ts, id, idx] = Buffer.from(cursor, 'base64url').toString().split(' ');
  const forge = (...parts: unknown[]) => Buffer.from(parts.join(' ')).toString('base64url');
  for (const forged of [
    forge('-999999999999999', ts, id, idx),
    forge(from, '-5000000000000', id, idx),
    forge(from, '999999999999999', id, idx),
    forge(ts, from, id, idx),
    forge(from, ts, id, '2147483648'),
    forge(from, ts, id, '-1'),
    forge(from, ts, id, `0${idx}`),
    forge(from, ts, id!.toUpperCase(), idx),
    forge(from, ts, 'x', idx),
    forge(from, ts, id, idx, ''),
    `${cursor}=`,
    `${cursor} `,
    cursor.slice(0, -8),
  ]) {
    const { status, json } = await ask(forged);
    expect([forged, status, json.error?.param]).toEqual([forged, 400, 'cursor']);
  }
});

test.each(['summary?limit=5', 'summary?interval=1h', 'events?group_by=model', 'timeseries?interval=1h&cursor=x'])(
  'refuses the parameter of another call: %s',
  async (path) => {
    for (const way of WAYS) {
      const { status, json } = await call(way, `/v1/usage/${path}`);
      expect([status, json.error.code]).toEqual([400, 'invalid_value']);
      expect(json.error.message).toMatch(/is no parameter of this call$/);
    }
  },
);
