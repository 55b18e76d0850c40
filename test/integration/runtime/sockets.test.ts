import { once } from 'node:events';
import { type AddressInfo, createServer, Socket } from 'node:net';
import pg from 'pg';
import { buildConnector, Client } from 'undici';
import { expect, inject, test } from 'vitest';
import { isDatabaseAway } from '../../../lib/db/errors.ts';
import { dialedBy, skipContinue, socketOf } from '../../../lib/runtime/sockets.ts';

// Canaries: each fails when a driver keeps its socket elsewhere.

test('the socket of a client of pg hears its answers, and ends its statements when it is destroyed', async () => {
  const pool = new pg.Pool({ connectionString: inject('postgresDsn'), max: 1 });
  pool.on('error', () => {});
  const heard: number[] = [];
  // Where lib/db/silence.ts takes it.
  pool.on('connect', (client) => socketOf(client).on('data', (bytes) => heard.push(bytes.length)));
  const client = await pool.connect();
  client.on('error', () => {});
  expect(socketOf(client)).toBeInstanceOf(Socket);
  await client.query('select 1');
  expect(heard.length).toBeGreaterThan(0);

  const waiting = client.query('select pg_sleep(60)').catch((error: unknown) => error);
  socketOf(client).destroy();
  expect(await waiting).toSatisfy(isDatabaseAway);
  client.release(true);
  await pool.end();
});

test('a connector of undici returns the socket that it dials, before the dial is over', async () => {
  const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const dial = buildConnector({ timeout: 10_000 });
  const socket = dialedBy(
    dial({ hostname: '127.0.0.1', host: '127.0.0.1', protocol: 'http:', port: String(port) }, () => {}),
  );
  expect(socket).toBeInstanceOf(Socket);
  expect(socket.connecting).toBe(true);
  const closed = once(socket, 'close');
  socket.destroy();
  await closed;
  server.close();
});

test('undici still leaves a dial alone when its client is destroyed', async () => {
  const server = createServer((socket) => socket.destroy()).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const dial = buildConnector({ timeout: 10_000 });
  let socket: Socket | undefined;
  let state: boolean[] = [];
  const client = new Client(`http://127.0.0.1:${port}`, {
    connect: (options, callback) => {
      socket = dialedBy(dial(options, callback));
      client.destroy(null, () => {});
      state = [socket.connecting, socket.destroyed];
    },
  });
  await expect(client.request({ path: '/', method: 'GET' })).rejects.toThrow('destroyed');
  // When this fails, lib/upstream/connections.ts need not destroy the socket by itself any more.
  expect(state).toEqual([true, false]);
  socket?.destroy();
  server.close();
});

test('undici reads its socket by `read`, and refuses a 100 Continue that comes through', async () => {
  const answer = 'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok';
  const server = createServer((socket) => socket.once('data', () => socket.end(answer)).on('error', () => {}));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const get = (skips: boolean) => {
    const dial = buildConnector({ timeout: 10_000 });
    const client = new Client(`http://127.0.0.1:${port}`, {
      connect: (options, callback) =>
        dial(options, (...outcome) => {
          if (skips && outcome[0] === null) skipContinue(outcome[1], () => true);
          callback(...outcome);
        }),
    });
    return client.request({ path: '/', method: 'GET' }).then(({ body }) => body.text());
  };
  expect(await get(true)).toBe('ok');
  await expect(get(false)).rejects.toThrow('bad response');
  server.close();
});

test('only heads of 100 Continue are taken out, wherever chunks end', () => {
  const rest = 'HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n';
  const all = Buffer.from(`HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 100 \r\na: b\r\n\r\n${rest}`);
  for (const size of [1, 2, 9, 13, 14, 30, all.length]) {
    const chunks: Buffer[] = [];
    for (let at = 0; at < all.length; at += size) chunks.push(all.subarray(at, at + size));
    const socket = new Socket();
    let awaits = true;
    socket.read = () => chunks.shift() ?? null;
    skipContinue(socket, () => awaits);
    let text = '';
    for (let chunk = socket.read(); chunk !== null; chunk = socket.read()) {
      text += String(chunk);
      awaits = false;
    }
    expect(text).toBe(rest);
  }
});
