import { afterAll, beforeAll, expect, test } from 'vitest';
import { routesOf } from '../../handlers/endpoint.ts';
import { USAGE_ENDPOINTS } from '../../handlers/usage.ts';
import { authenticate } from '../../lib/auth/authenticate.ts';
import { hashKey } from '../../lib/auth/keys.ts';
import { uuidv7 } from '../../lib/base/clock.ts';
import { ApiError } from '../../lib/base/errors.ts';
import { createLog } from '../../lib/base/log.ts';
import { type HttpServer, serve } from '../../lib/http/node.ts';
import { createMatcher } from '../../lib/http/routes.ts';
import { asEvent, overHttp } from '../support/native-api.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';
import { insertEvents, insertOwner } from '../support/usage-events.ts';
import { callers, plaintextOf } from '../unit/auth-catalog.ts';

let database: TestDatabase;
let server: HttpServer;
let find: ReturnType<typeof createMatcher>;

beforeAll(async () => {
  database = await createTestDatabase();
  const log = createLog('silent');
  const catalog = callers({ policies: [{ name: 'p' }], keys: ['ann', 'bob'].map((name) => ({ name, policy: 'p' })) });
  const tokens = { verify: () => Promise.reject(new ApiError('invalid_token')) };
  const routes = routesOf(USAGE_ENDPOINTS, {
    db: database.db,
    log,
    notReady: () => null,
    authenticate: (headers) => authenticate(headers, catalog, { nowMs: Date.now(), tokens }),
  });
  server = await serve({ host: '127.0.0.1', port: 0, routes, maxBodyBytes: 1024, log, onRequest: () => {} });
  find = createMatcher(routes);
  for (const [name, items] of [
    ['ann', 3],
    ['bob', 1],
  ] as const) {
    const batchId = uuidv7();
    await insertOwner(database.db, batchId, { owner: hashKey(plaintextOf(name)) });
    const ts = new Date(Date.now() - 60_000);
    await insertEvents(
      database.db,
      Array.from({ length: items }, (_, idx) => ({ batchId, idx, ts, finishReason: name })),
    );
  }
});

afterAll(async () => {
  await server.close(0);
  await database.close();
});

const ways = ['node', 'lambda'] as const;
const call = (way: (typeof ways)[number], path: string, as: string | null = 'ann') =>
  way === 'node' ? overHttp(`http://127.0.0.1:${server.port}`, { path, as }) : asEvent(find, { path, as });

test.each(ways)('a caller sees its own usage and nobody else (%s)', async (way) => {
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

test.each(ways)('a bad value is 400 and named, and nobody asks without a credential (%s)', async (way) => {
  const bad = await call(way, '/v1/usage/events?status=abc');
  expect(bad.status).toBe(400);
  expect(bad.json.error).toMatchObject({ type: 'invalid_request_error', code: 'invalid_value', param: 'status' });
  expect((await call(way, '/v1/usage/timeseries')).json.error).toMatchObject({
    code: 'missing_required_parameter',
    param: 'interval',
  });
  expect((await call(way, '/v1/usage/summary', null)).status).toBe(401);
});
