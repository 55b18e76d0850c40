import { once } from 'node:events';
import { createServer as createHttpServer, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect, createServer, Socket } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import pg from 'pg';
import { buildConnector, Client } from 'undici';
import { expect, inject, test } from 'vitest';
import { isDatabaseAway } from '../../../lib/db/errors.ts';
import { bodyFlow, dialedBy, socketOf } from '../../../lib/runtime/sockets.ts';

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

test('a body waits unread until it is resumed, comes whole then, and the next request behind it', async () => {
  const bodies: IncomingMessage[] = [];
  const server = createHttpServer((req, res) => {
    bodies.push(req);
    if (bodies.length > 1) res.end('second');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const chunks = 200_000;
  const held = once(server, 'request').then(([req]) => ({ req, flow: bodyFlow(req) }));
  client.write('POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n');
  client.write(`${'1\r\nx\r\n'.repeat(chunks)}0\r\n\r\n`);
  const { req, flow } = await held;
  for (let turn = 0; turn < 200; turn++) await nextTurn();
  const [unread, taken] = [req.socket.bytesRead, req.readableLength];

  let length = 0;
  const readMeanwhile: number[] = [];
  req.on('data', (chunk: Buffer) => {
    length += chunk.length;
    if (length % 50_000 !== 0) return;
    flow.pause();
    const { bytesRead } = req.socket;
    setImmediate(() => {
      readMeanwhile.push(req.socket.bytesRead - bytesRead);
      flow.resume();
    });
  });
  flow.resume();
  await once(req, 'end');
  expect(length).toBe(chunks);
  expect(unread).toBeLessThan(128 * 1024);
  expect(taken).toBeLessThan(16 * 1024);
  expect(readMeanwhile.slice(0, 3)).toEqual([0, 0, 0]);
  const second = once(server, 'request');
  client.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
  await second;
  expect(bodies).toHaveLength(2);
  client.destroy();
  server.close();
});
