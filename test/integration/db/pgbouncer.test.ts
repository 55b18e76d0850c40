import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { createDb } from '../../../lib/db/database.ts';
import { type PgBouncer, pgBouncerVersion, startPgBouncer } from '../../support/pgbouncer.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type Service, startService } from '../../support/service.ts';

// The whole integration suite goes through the pooler with RELAY_TEST_PGBOUNCER=1; here it is one service, always.
// Few server connections, so that clients get each other's all the time.
const POOL_SIZE = 4;
const ADMIN = { authorization: 'Bearer admin-of-this-test', 'content-type': 'application/json' };

const CATALOG = `---
kind: RateLimit
metadata: {name: few}
spec: {rules: [{meter: requests, amount: 3, window: 3600, strategy: fixed-window}]}
---
kind: Policy
metadata: {name: limited}
spec: {models: [test], rateLimit: few}
---
kind: Key
metadata: {name: eve}
spec: {policy: limited, valueFrom: {kind: env, env: TEST_KEY_EVE}}
---
kind: User
metadata: {name: uma}
spec: {}
`;

describe.skipIf(pgBouncerVersion() === null)('through PgBouncer in transaction mode (when it is on the PATH)', () => {
  let bouncer: PgBouncer;
  let database: TestDatabase;
  let service: Service;

  beforeAll(async () => {
    bouncer = await startPgBouncer(inject('postgresDsn'), { poolSize: POOL_SIZE });
    database = await createTestDatabase(bouncer);
    service = await startService({
      database,
      catalog: CATALOG,
      env: {
        RELAY_MASTER_KEY: randomBytes(32).toString('base64'),
        RELAY_CONTROL_PORT: '0',
        RELAY_ADMIN_TOKEN: 'admin-of-this-test',
        RELAY_BATCH_CONCURRENCY: '16',
      },
    });
  });
  afterAll(async () => {
    await service?.close();
    await database?.close();
    await bouncer?.stop();
  });

  const items = (count: number, model = 'any') => Array.from({ length: count }, (_, n) => ({ model, n }));

  test('runs batches side by side, with results and one event an item', async () => {
    const runs = await Promise.all(Array.from({ length: 6 }, () => service.run('node', items(150, 'priced'))));
    for (const { id, results } of runs) {
      expect(results.map(({ idx, state }) => [idx, state])).toEqual(items(150).map(({ n }) => [n, 'completed']));
      expect(await service.events(id)).toHaveLength(150);
    }
    const summary = await service.call('node', { path: '/v1/usage/summary?group_by=model' });
    expect(summary.json.rows).toMatchObject([{ requests: 900 }]);
    const { status } = await service.call('node', { path: '/v1/usage/timeseries?interval=1h&group_by=host' });
    expect(status).toBe(200);
  });

  test('cancels what runs, by a NOTIFY that goes in through the pooler and comes out past it', async () => {
    const id = await service.submit('node', items(20, 'hang'));
    await service.upstream.waitForRequests(16, ({ model }) => model === 'hang');
    const answer = await service.call('node', { method: 'POST', path: `/v1/batches/${id}/cancel` });
    expect(answer.json).toEqual({ status: 'cancelled' });
    await service.upstream.waitForClosedEarly();
    await service.finished(id);
    const { json } = await service.call('node', { path: `/v1/batches/${id}?items=false` });
    expect(json.counts).toEqual({ cancelled: 20 });
  });

  test('holds limits, keys and their breakers', async () => {
    const { results } = await service.run('node', items(10), { as: 'eve' });
    expect(results.filter(({ state }) => state === 'completed')).toHaveLength(3);
    service.upstream.failKey('sk-host-one', 429, { 'retry-after': '60' });
    const keyed = await service.run('node', items(8, 'keyed'));
    expect(keyed.results.every(({ state }) => state === 'completed')).toBe(true);
    service.upstream.failKey('sk-host-one', null);
  });

  test('starts a submit once by its Idempotency-Key, under the lock of a transaction', async () => {
    const headers = { 'idempotency-key': 'once' };
    const ids = await Promise.all(Array.from({ length: 8 }, () => service.submit('node', items(3), { headers })));
    expect(new Set(ids).size).toBe(1);
    await service.finished(ids[0]!);
    const removed = await service.call('node', { method: 'DELETE', path: `/v1/batches/${ids[0]}` });
    expect(removed.status).toBe(200);
  });

  test('issues tokens, takes them and revokes them', async () => {
    const control = `http://127.0.0.1:${service.server.controlPort}/api`;
    const body = JSON.stringify({ user: 'uma', ttl: 600 });
    const issued = await fetch(`${control}/tokens`, { method: 'POST', headers: ADMIN, body });
    const { token, jti } = (await issued.json()) as { token: string; jti: string };
    const ask = () =>
      service.call('node', {
        path: '/v1/batches?surface=relay',
        as: null,
        headers: { authorization: `Bearer ${token}` },
      });
    expect((await ask()).status).toBe(200);
    const gone = await fetch(`${control}/tokens/${jti}`, { method: 'DELETE', headers: ADMIN });
    expect(gone.ok).toBe(true);
    await expect.poll(async () => (await ask()).json.error?.code, { timeout: 10_000 }).toBe('token_revoked');
  });

  test('is refused by it with the options of a direct connection', async () => {
    const dsn = bouncer.dsnOf(new URL(database.dsn).pathname.slice(1));
    const direct = createDb({ dsn, max: 1, prepared: true, applicationName: 'test', log: createLog('silent') });
    await expect(direct.query({ name: 'one', text: 'select 1', values: [] })).rejects.toThrow(
      /startup parameter.*options/,
    );
    await direct.close();
  });

  test('leaves nothing behind in the connections that it shares', async () => {
    const dsn = bouncer.dsnOf(new URL(database.dsn).pathname.slice(1));
    const clients = Array.from({ length: POOL_SIZE }, () => new pg.Client({ connectionString: dsn }));
    const seen = new Set<number>();
    for (const client of clients) {
      client.on('error', () => {});
      await client.connect();
      await client.query('begin'); // holds the connection, so that the next client gets another one
      const { rows } = await client.query(`select pg_backend_pid() as pid,
        (select array_agg(name) from pg_settings where source = 'session' and name not like 'transaction_%'
          and name not in ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')) as settings,
        (select count(*)::int from pg_prepared_statements) as prepared,
        (select count(*)::int from pg_listening_channels()) as channels,
        (select count(*)::int from pg_locks where pid = pg_backend_pid() and locktype = 'advisory') as locks,
        (select count(*)::int from pg_class where relpersistence = 't') as temporary`);
      const { pid, ...left } = rows[0];
      expect(left).toEqual({ settings: null, prepared: 0, channels: 0, locks: 0, temporary: 0 });
      seen.add(pid);
    }
    expect(seen.size).toBe(POOL_SIZE);
    await Promise.all(clients.map((client) => client.end()));
  });
});
