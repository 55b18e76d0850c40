import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { bodyFlow } from '../../../lib/runtime/body-flow.ts';

// Fails when Node reads bodies in another way.

test('a body waits unread until it is resumed, comes whole then, and the next request behind it', async () => {
  const bodies: IncomingMessage[] = [];
  const server = createServer((req, res) => {
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

test('a pipelined body waits, too, when the one before it ends', async () => {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const held: { req: IncomingMessage; flow: ReturnType<typeof bodyFlow> }[] = [];
  const both = new Promise<void>((resolve) => {
    server.on('request', (req: IncomingMessage) => {
      if (held.push({ req, flow: bodyFlow(req) }) === 2) resolve();
    });
  });
  const chunks = 200_000;
  client.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx');
  client.write('POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n');
  client.write(`${'1\r\nx\r\n'.repeat(chunks)}0\r\n\r\n`);
  await both;
  const [first, second] = held;
  first!.req.resume();
  first!.flow.resume();
  await once(first!.req, 'end');
  for (let turn = 0; turn < 200; turn++) await nextTurn();
  expect(second!.req.socket.bytesRead).toBeLessThan(128 * 1024);

  second!.flow.resume();
  second!.flow.pause();
  const { bytesRead } = second!.req.socket;
  for (let turn = 0; turn < 200; turn++) await nextTurn();
  expect(second!.req.socket.bytesRead).toBe(bytesRead);
  expect(second!.req.socket.listenerCount('resume')).toBeLessThan(5);

  let length = 0;
  second!.req.on('data', (chunk: Buffer) => {
    length += chunk.length;
  });
  second!.flow.resume();
  await once(second!.req, 'end');
  expect(length).toBe(chunks);
  client.destroy();
  server.close();
});
