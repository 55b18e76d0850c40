import { once } from 'node:events';
import { request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { pino } from 'pino';
import { afterEach, expect, test, vi } from 'vitest';
import { open as answering } from '../../../handlers/middleware.ts';
import { type BodyBudget, createBodyBudget } from '../../../lib/base/body-budget.ts';
import { ApiError } from '../../../lib/base/errors.ts';
import { type ApiEvent, type ApiHandler, bodyOf, streamOf } from '../../../lib/http/event.ts';
import { type HttpServer, serve } from '../../../lib/http/node.ts';
import { json } from '../../../lib/http/render.ts';
import type { BoundRoute } from '../../../lib/http/routes.ts';

const MIB = 1024 * 1024;
const open: HttpServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close(0)));
});

interface Bodies {
  port: number;
  budget: BodyBudget;
  /** How many requests reached a handler. */
  ran(): number;
  /** Status of each request that is over, as it was logged. */
  statuses: number[];
}

/** Routes that take bodies for the owners `ann` and `bob`, who say so in a header. */
async function start(options: { slowMs?: number; budget?: number; before?: Promise<unknown> } = {}): Promise<Bodies> {
  let ran = 0;
  const statuses: number[] = [];
  const read: ApiHandler = async (event) => {
    ran++;
    await options.before;
    return json(200, { length: bodyOf(event).length, last: bodyOf(event).at(-1) });
  };
  const stream = async (event: ApiEvent) => {
    ran++;
    let length = 0;
    let blocks = 0;
    for await (const block of streamOf(event)) {
      length += block.byteLength;
      blocks++;
    }
    return json(200, { length, blocks });
  };
  const admit: BoundRoute['admit'] = async ({ headers }) => {
    if (headers.owner === undefined) throw new ApiError('missing_api_key');
    return headers.owner;
  };
  const budget = createBodyBudget(options.budget ?? 64 * MIB);
  const log = pino({ level: 'silent' });
  const server = await serve({
    host: '127.0.0.1',
    port: 0,
    routes: [
      { method: 'POST', pattern: '/read', run: read, body: 'read', admit },
      { method: 'POST', pattern: '/small', run: read, body: 'read', maxBytes: 10, admit },
      { method: 'POST', pattern: '/stream', run: answering({ log }, stream), body: 'stream' },
    ],
    maxBodyBytes: 32 * MIB,
    bodies: budget,
    log,
    onRequest: ({ status }) => void statuses.push(status),
    ...(options.slowMs === undefined ? {} : { slowMs: options.slowMs }),
  });
  open.push(server);
  return { port: server.port, budget, ran: () => ran, statuses };
}

function head(path: string, length: number | 'chunked', headers: Record<string, string> = {}): string {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  const framing = length === 'chunked' ? 'Transfer-Encoding: chunked' : `Content-Length: ${length}`;
  return `POST ${path} HTTP/1.1\r\nHost: x\r\n${framing}\r\n${lines.join('')}\r\n`;
}

const ANN = { owner: 'ann', connection: 'close' };

async function begin(port: number, text: string): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  socket.write(text);
  return socket;
}

async function readAll(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  await once(socket, 'close');
  return text;
}

test.each(['/read', '/small'])('asks who sends a body before it takes a byte of it: %s', async (path) => {
  const { port, ran, budget } = await start();
  const socket = await begin(port, head(path, 32 * MIB, { connection: 'close' }));
  expect(await readAll(socket)).toMatch(/^HTTP\/1\.1 401 /);
  expect([ran(), budget.held()]).toEqual([0, 0]);
});

test('asks who sends a body before it says 100 Continue', async () => {
  const { port } = await start();
  const stranger = await begin(port, head('/read', 2, { expect: '100-continue' }));
  expect(await readAll(stranger)).toMatch(/^HTTP\/1\.1 401 /);
  const known = await begin(port, head('/read', 2, { ...ANN, expect: '100-continue' }));
  const [first] = await once(known, 'data');
  expect(String(first)).toMatch(/^HTTP\/1\.1 100 /);
  known.write('{}');
  expect(await readAll(known)).toContain('"length":2');
});

test('holds a route to its own limit, whatever the server takes', async () => {
  const { port, ran } = await start();
  for (const text of [head('/small', 11, ANN), `${head('/small', 'chunked', ANN)}b\r\n01234567890\r\n0\r\n\r\n`]) {
    expect(await readAll(await begin(port, text))).toMatch(/^HTTP\/1\.1 400 .*the limit is 10 bytes/s);
  }
  expect(ran()).toBe(0);
});

test('answers 503 to the body that an owner has no room for, and takes that of another', async () => {
  const { port, budget } = await start();
  const first = await begin(port, head('/read', 32 * MIB, ANN));
  await vi.waitUntil(() => budget.held() === 32 * MIB);
  const refused = await readAll(await begin(port, head('/read', 1, ANN)));
  expect(refused).toMatch(/^HTTP\/1\.1 503 /);
  expect(refused).toMatch(/retry-after: \d+\r\n/i);
  expect(refused).toContain('"code":"overloaded"');
  const other = await begin(port, head('/read', 32 * MIB, { owner: 'bob', connection: 'close' }));
  await vi.waitUntil(() => budget.held() === 64 * MIB);
  const third = await begin(port, head('/read', 1, { owner: 'eve', connection: 'close' }));
  expect(await readAll(third)).toMatch(/^HTTP\/1\.1 503 /);
  first.destroy();
  await vi.waitUntil(() => budget.held() === 32 * MIB);
  other.write(Buffer.alloc(32 * MIB, 'x'));
  expect(await readAll(other)).toContain(`"length":${32 * MIB}`);
  await vi.waitUntil(() => budget.held() === 0);
});

test('counts a body of unknown length as it grows, and until its handler has ended', async () => {
  const { promise, resolve } = Promise.withResolvers<void>();
  const { port, budget, ran } = await start({ budget: 4 * MIB, before: promise });
  const chunk = Buffer.alloc(MIB, 'x');
  const socket = await begin(port, head('/read', 'chunked', ANN));
  for (let i = 0; i < 3; i++) socket.write(Buffer.concat([Buffer.from('100000\r\n'), chunk, Buffer.from('\r\n')]));
  socket.write('0\r\n\r\n');
  await vi.waitUntil(() => ran() === 1);
  expect(budget.held()).toBe(3 * MIB);
  const refused = await begin(port, head('/read', 'chunked', ANN));
  refused.write('1\r\nx\r\n0\r\n\r\n');
  expect(await readAll(refused)).toMatch(/^HTTP\/1\.1 503 /);
  resolve();
  expect(await readAll(socket)).toContain(`"length":${3 * MIB}`);
  expect(budget.held()).toBe(0);
});

test.each(['/read', '/stream'])('puts chunks of one byte together: %s', async (path) => {
  const { port } = await start();
  const chunks = 100_000;
  const socket = await begin(port, head(path, 'chunked', ANN));
  socket.write(`${'1\r\nx\r\n'.repeat(chunks)}0\r\n\r\n`);
  const text = await readAll(socket);
  expect(text).toContain(`"length":${chunks}`);
  if (path === '/stream') expect(Number(/"blocks":(\d+)/.exec(text)?.[1])).toBeLessThan(1000);
});

test.each(['/read', '/stream'])('cuts off a body that comes too slowly: %s', async (path) => {
  const { port, budget } = await start({ slowMs: 300 });
  const socket = await begin(port, head(path, 1000, { owner: 'ann' }));
  const drip = setInterval(() => socket.write('x'), 100);
  const text = await readAll(socket);
  clearInterval(drip);
  expect(text).toMatch(/^HTTP\/1\.1 408 .*request body did not arrive in time/s);
  expect(text).toMatch(/connection: close/i);
  expect(budget.held()).toBe(0);
});

test.each(['/read', '/stream'])('takes a body that comes at its pace: %s', async (path) => {
  const { port } = await start({ slowMs: 200 });
  const socket = await begin(port, head(path, 5000, ANN));
  for (let i = 0; i < 5; i++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    socket.write('x'.repeat(1000));
  }
  expect(await readAll(socket)).toContain('"length":5000');
});

test.each(['ann', undefined])(
  'lets a client of one call (%s) send all of a refused body, then read why',
  async (owner) => {
    const { port, statuses } = await start();
    const body = Buffer.alloc(40 * MIB, 'x');
    for (let i = 0; i < 5; i++) {
      const status = await new Promise<number | undefined>((resolve, reject) => {
        const headers = { connection: 'close', 'content-length': body.length, ...(owner && { owner }) };
        const req = request({ host: '127.0.0.1', port, path: '/read', method: 'POST', headers, agent: false });
        req.on('error', reject);
        req.on('response', (res) => {
          res.resume();
          req.on('close', () => resolve(res.statusCode));
        });
        req.end(body);
      });
      expect(status).toBe(owner === undefined ? 401 : 400);
      await vi.waitUntil(() => statuses.length === i + 1);
      expect(statuses[i]).toBe(status);
    }
  },
);
