import { once } from 'node:events';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import pg from 'pg';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { classOf, isSilence } from '../../../lib/db/errors.ts';

// pg and pg-pool tell a broken connection by texts alone, which lib/db/errors.ts knows by heart. Here they are provoked, so
// that a new version of the driver that words them otherwise is noticed.

const connectionString = inject('postgresDsn');
/** Takes connections and never answers. */
let mute: Server;
const muted = new Set<Socket>();

beforeAll(async () => {
  mute = createServer((socket) => muted.add(socket.on('error', () => {}))).listen(0, '127.0.0.1');
  await once(mute, 'listening');
});
afterAll(() => {
  for (const socket of muted) socket.destroy();
  mute.close();
});

const muteDsn = () => `postgres://relay@127.0.0.1:${(mute.address() as AddressInfo).port}/relay`;
const thrownBy = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => undefined,
    (error: unknown) => error,
  );

async function withClient<T>(config: pg.ClientConfig, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client(config);
  client.on('error', () => {});
  try {
    return await work(client);
  } finally {
    void client.end().catch(() => {});
  }
}

async function withPool<T>(config: pg.PoolConfig, work: (pool: pg.Pool) => Promise<T>): Promise<T> {
  const pool = new pg.Pool(config);
  pool.on('error', () => {});
  try {
    return await work(pool);
  } finally {
    void pool.end();
  }
}

test('a statement without an answer in time', async () => {
  const error = await withClient({ connectionString, query_timeout: 50 }, async (client) => {
    await client.connect();
    return thrownBy(client.query('select pg_sleep(1)'));
  });
  expect([classOf(error), isSilence(error)]).toEqual(['away', true]);
});

test('no connection in time, because all of them are busy', async () => {
  const error = await withPool({ connectionString, max: 1, connectionTimeoutMillis: 50 }, async (pool) => {
    const busy = await pool.connect();
    const failure = await thrownBy(pool.query('select 1'));
    busy.release();
    return failure;
  });
  expect([classOf(error), isSilence(error)]).toEqual(['away', true]);
});

test.each([
  [
    'a client',
    () => withClient({ connectionString: muteDsn(), connectionTimeoutMillis: 50 }, (c) => thrownBy(c.connect())),
  ],
  [
    'a pool',
    () => withPool({ connectionString: muteDsn(), connectionTimeoutMillis: 50 }, (p) => thrownBy(p.query('select 1'))),
  ],
])('a server that does not greet %s', async (_, provoke) => {
  expect(classOf(await provoke())).toBe('away');
});

test('a connection that is cut, and the next statement on it', async () => {
  const [cut, next] = await withClient({ connectionString }, async (client) => {
    await client.connect();
    const { rows } = await client.query<{ pid: number }>('select pg_backend_pid() as pid');
    const waiting = thrownBy(client.query('select pg_sleep(60)'));
    await withClient({ connectionString }, async (other) => {
      await other.connect();
      await other.query('select pg_terminate_backend($1)', [rows[0]!.pid]);
    });
    return [await waiting, await thrownBy(client.query('select 1'))];
  });
  expect([classOf(cut), classOf(next)]).toEqual(['away', 'away']);
});

test('a server without SSL', async () => {
  const error = await withClient({ connectionString, ssl: true }, (client) => thrownBy(client.connect()));
  expect(classOf(error)).toBe('away');
});
