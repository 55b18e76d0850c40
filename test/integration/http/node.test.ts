import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { pino } from 'pino';
import { afterEach, expect, test, vi } from 'vitest';
import { createBodyBudget } from '../../../lib/base/body-budget.ts';
import { ApiError } from '../../../lib/base/errors.ts';
import { type ApiHandler, type ApiResult, bodyOf } from '../../../lib/http/event.ts';
import { type HttpServer, type SeenRequest, serve } from '../../../lib/http/node.ts';
import { json } from '../../../lib/http/render.ts';
import type { BoundRoute } from '../../../lib/http/routes.ts';

const LIMIT = 100_000;
const BUDGET = 64 * 1024 * 1024;
const open: HttpServer[] = [];
afterEach(async () => {
  await Promise.all(open.splice(0).map((server) => server.close(0)));
});

interface Started extends HttpServer {
  url: string;
  seen: SeenRequest[];
  /** Resolves with the next request that is over. */
  next(): Promise<SeenRequest>;
  /** Lines of the log, parsed. */
  lines: Record<string, unknown>[];
}

async function start(run: ApiHandler, stallMs?: number): Promise<Started> {
  const routes: BoundRoute[] = [
    { method: 'POST', pattern: '/things', run, body: 'read' },
    { method: 'GET', pattern: '/things/{id}', run },
    { method: 'POST', pattern: '/things/{id}/stop', run },
  ];
  const seen: SeenRequest[] = [];
  const waiting: ((seen: SeenRequest) => void)[] = [];
  const lines: Record<string, unknown>[] = [];
  const sink = new PassThrough();
  sink.on('data', (line) => lines.push(JSON.parse(line)));
  const server = await serve({
    host: '127.0.0.1',
    port: 0,
    routes,
    maxBodyBytes: LIMIT,
    bodies: createBodyBudget(BUDGET),
    log: pino({}, sink),
    onRequest: (request) => {
      seen.push(request);
      waiting.shift()?.(request);
    },
    ...(stallMs === undefined ? {} : { stallMs }),
  });
  open.push(server);
  const next = () => new Promise<SeenRequest>((resolve) => waiting.push(resolve));
  return { ...server, url: `http://127.0.0.1:${server.port}`, seen, next, lines };
}

const echo: ApiHandler = async (event) =>
  json(200, { length: bodyOf(event).length, id: event.pathParameters?.id, query: event.rawQueryString });

/** Everything the server sends on a raw connection until it closes. */
async function raw(port: number, ...pieces: (string | Buffer)[]): Promise<string> {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  for (const piece of pieces) socket.write(piece);
  return readAll(socket);
}

async function readAll(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  await once(socket, 'close');
  return text;
}

const post = (length: number | string, extra = '') =>
  `POST /things HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ${length}\r\n${extra}\r\n`;

test.each([
  '/',
  '/thing',
  '/things/',
  '/things//stop',
  '/THINGS/1',
  '/things/1/',
  '/things/%zz',
  `/${'a'.repeat(20_000)}`,
])('answers the unknown path %s with 404 and a request id', async (path) => {
  const { url } = await start(echo);
  const response = await fetch(url + path);
  expect(response.status).toBe(404);
  expect(await response.json()).toEqual({
    error: { type: 'invalid_request_error', message: 'not found', code: 'not_found', param: null },
  });
  expect(response.headers.get('x-relay-request-id')).toMatch(/^[0-9a-f-]{36}$/);
  expect(response.headers.get('x-request-id')).toBe(response.headers.get('x-relay-request-id'));
});

test('decodes path parameters and takes long URLs, absolute targets and queries', async () => {
  const { url, port } = await start(echo);
  expect(await (await fetch(`${url}/things/a%2Fb%20%C3%A9?x=1&x=2`)).json()).toMatchObject({
    id: 'a/b é',
    query: 'x=1&x=2',
  });
  expect((await fetch(`${url}/things/${'a'.repeat(30_000)}`)).status).toBe(200);
  expect(await raw(port, 'GET http://other/things/1?q HTTP/1.1\r\nConnection: close\r\n\r\n')).toContain('"query":"q"');
});

test('answers a wrong method with 405 and Allow, OPTIONS with 204 and Allow', async () => {
  const { url } = await start(echo);
  for (const [method, path, allow] of [
    ['GET', '/things', 'POST, OPTIONS'],
    ['DELETE', '/things/1', 'GET, HEAD, OPTIONS'],
    ['PATCH', '/things/1/stop', 'POST, OPTIONS'],
  ] as const) {
    const wrong = await fetch(url + path, { method });
    expect([wrong.status, wrong.headers.get('allow')]).toEqual([405, allow]);
    expect(await wrong.json()).toMatchObject({ error: { code: 'method_not_allowed' } });
    const options = await fetch(url + path, { method: 'OPTIONS' });
    expect([options.status, options.headers.get('allow'), await options.text()]).toEqual([204, allow, '']);
  }
  expect((await fetch(`${url}/none`, { method: 'OPTIONS' })).status).toBe(404);
});

test('answers HEAD like GET without a body, of a stream too', async () => {
  let streamed = false;
  const { url, port } = await start(async (event) => {
    if (event.pathParameters?.id !== 'stream') return json(200, { a: 1 });
    return {
      statusCode: 200,
      headers: { 'content-type': 'application/json' },
      stream: (async function* () {
        streamed = true;
        yield Buffer.from('x');
      })(),
      length: 1,
      object: null,
    };
  });
  const head = await fetch(`${url}/things/1`, { method: 'HEAD' });
  expect([head.status, head.headers.get('content-length'), await head.text()]).toEqual([200, '7', '']);
  const text = await raw(port, 'HEAD /things/stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
  expect(text).toMatch(/^HTTP\/1\.1 200 [\s\S]*\r\n\r\n$/);
  expect(streamed).toBe(false);
});

test('echoes a request id of 1-128 printable ASCII characters and replaces any other', async () => {
  const { url } = await start(echo);
  const idFor = async (id: string) =>
    (await fetch(`${url}/things/1`, { headers: { 'x-request-id': id } })).headers.get('x-relay-request-id');
  expect(await idFor('my id/1')).toBe('my id/1');
  expect(await idFor('x'.repeat(128))).toBe('x'.repeat(128));
  expect(await idFor('x'.repeat(129))).toMatch(/^[0-9a-f-]{36}$/);
  expect(await idFor('caf\u00e9')).toMatch(/^[0-9a-f-]{36}$/);
});

test.each([
  ['garbage', 'this is not HTTP\r\n\r\n', 400],
  ['a bad length', 'POST /things HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n', 400],
  [
    'length and chunks at once',
    'POST /things HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n',
    400,
  ],
  ['a bad chunk', 'POST /things HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n', 400],
  ['headers without end', `GET /${'a'.repeat(70_000)} HTTP/1.1\r\n\r\n`, 431],
])('answers %s without falling over', async (_, bytes, status) => {
  const { url, port } = await start(echo);
  const text = await raw(port, bytes);
  expect(text.split(' ')[1]).toBe(String(status));
  expect(text).toMatch(/x-relay-request-id: [0-9a-f-]{36}\r\n/);
  expect((await fetch(`${url}/things/1`)).status).toBe(200);
});

test('reads a body at the limit, by length and by chunks', async () => {
  const { url } = await start(echo);
  const body = Buffer.alloc(LIMIT, 'x');
  expect(await (await fetch(`${url}/things`, { method: 'POST', body })).json()).toMatchObject({ length: LIMIT });
  const stream = new Blob([body]).stream();
  const chunked = await fetch(`${url}/things`, { method: 'POST', body: stream, duplex: 'half' } as RequestInit);
  expect(await chunked.json()).toMatchObject({ length: LIMIT });
});

test('refuses an over-large body before it is sent', async () => {
  const { port } = await start(echo);
  const socket = connect(port, '127.0.0.1');
  socket.write(post(LIMIT + 1));
  const [answer] = await once(socket, 'data');
  expect(String(answer)).toContain(`${LIMIT + 1} bytes sent, the limit is ${LIMIT} bytes`);
  expect(String(answer)).toMatch(/^HTTP\/1\.1 400 /);
  socket.destroy();
});

test('lets a client that sends an over-large body to its end read the 400', async () => {
  const { url } = await start(echo);
  const body = Buffer.alloc(20_000_000, 'x');
  const response = await fetch(`${url}/things`, { method: 'POST', body });
  expect(response.status).toBe(400);
  expect(await response.json()).toMatchObject({ error: { code: 'body_too_large' } });
});

test('counts the bytes of a chunked body', async () => {
  const { port } = await start(echo);
  const chunk = Buffer.concat([Buffer.from('fa00\r\n'), Buffer.alloc(64_000, 'x'), Buffer.from('\r\n')]);
  const head = 'POST /things HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n';
  const text = await raw(port, head, chunk, chunk, '0\r\n\r\n');
  expect(text).toContain(`more than ${LIMIT} bytes sent, the limit is ${LIMIT} bytes`);
});

test('asks for a body that was announced with Expect only when it will take it', async () => {
  const { port } = await start(echo);
  const refused = await raw(port, post(LIMIT + 1, 'Expect: 100-continue\r\n'));
  expect(refused).toMatch(/^HTTP\/1\.1 400 /);
  const socket = connect(port, '127.0.0.1');
  socket.write(post(2, 'Expect: 100-continue\r\n'));
  const [first] = await once(socket, 'data');
  expect(String(first)).toMatch(/^HTTP\/1\.1 100 /);
  socket.write('{}');
  expect(await readAll(socket)).toContain('"length":2');
});

test('takes and ignores the body of a call that has none', async () => {
  const { url } = await start(echo);
  const body = Buffer.alloc(LIMIT * 3, 'x');
  const response = await fetch(`${url}/things/1/stop`, { method: 'POST', body });
  expect(await response.json()).toMatchObject({ length: 0, id: '1' });
});

test('forgets an upload that its client breaks off', async () => {
  let ran = false;
  const server = await start(async (event, context) => {
    ran = true;
    return echo(event, context);
  });
  const over = server.next();
  const socket = connect(server.port, '127.0.0.1');
  socket.write(post(1000));
  socket.write('half');
  await once(socket, 'connect');
  socket.end();
  expect((await over).status).toBe(499);
  expect(ran).toBe(false);
});

test('hides what went wrong inside, and logs it under the request id', async () => {
  const { url, lines } = await start(async () => {
    throw new Error('password=hunter2');
  });
  const response = await fetch(`${url}/things/1`, { headers: { 'x-request-id': 'r1' } });
  expect(response.status).toBe(500);
  expect(await response.json()).toEqual({
    error: { type: 'api_error', message: 'internal error', code: 'internal', param: null },
  });
  expect(lines.find((line) => line.msg === 'request failed')).toMatchObject({ requestId: 'r1', code: 'internal' });
});

test('logs and counts a request by its pattern, without query and path values', async () => {
  const { url, seen, lines } = await start(async (event, context) => ({
    ...(await echo(event, context)),
    batchId: 'b1',
  }));
  await fetch(`${url}/things/secret?token=secret`, { headers: { authorization: 'Bearer secret' } });
  await fetch(`${url}/secret`);
  expect(seen.map(({ method, route, status }) => [method, route, status])).toEqual([
    ['GET', '/things/{id}', 200],
    ['GET', 'unmatched', 404],
  ]);
  const [line] = lines.filter((l) => l.msg === 'request');
  expect(line).toMatchObject({ method: 'GET', route: '/things/{id}', status: 200, batchId: 'b1' });
  expect(JSON.stringify(lines)).not.toContain('secret');
});

test('tells of a stream that fails before its first byte, and cuts one that fails later', async () => {
  let letGo = () => {};
  const gate = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  const { url, next } = await start(async (event) => {
    const late = event.pathParameters?.id === 'late';
    const stream = (async function* () {
      if (late) {
        yield Buffer.from('{"results":[');
        await gate;
      }
      throw new ApiError('not_found');
    })();
    return { statusCode: 200, headers: {}, stream, length: null, object: null };
  });
  expect((await fetch(`${url}/things/early`)).status).toBe(404);
  const over = next();
  const response = await fetch(`${url}/things/late`);
  expect(response.status).toBe(200);
  letGo();
  await expect(response.text()).rejects.toThrow();
  await over;
});

/** 64 KiB chunks without end; `done` resolves when the adapter lets go of it. */
function endless(): { result: ApiResult; done: Promise<void>; given: () => number } {
  let given = 0;
  let release = () => {};
  const done = new Promise<void>((resolve) => {
    release = resolve;
  });
  const stream = (async function* () {
    try {
      for (;;) {
        given++;
        yield Buffer.alloc(65_536, 'x');
      }
    } finally {
      release();
    }
  })();
  return { result: { statusCode: 200, headers: {}, stream, length: null, object: null }, done, given: () => given };
}

test('drops a streaming client that takes nothing, and stops producing meanwhile', async () => {
  const source = endless();
  const server = await start(async () => source.result, 300);
  const over = server.next();
  const socket = connect(server.port, '127.0.0.1');
  socket.pause();
  socket.on('error', () => {});
  socket.write('GET /things/1 HTTP/1.1\r\nHost: x\r\n\r\n');
  expect((await over).status).toBe(499);
  await source.done;
  expect(source.given()).toBeLessThan(500);
  socket.destroy();
});

test('stops a stream when its client goes away', async () => {
  const source = endless();
  const { url } = await start(async () => source.result);
  const response = await fetch(`${url}/things/1`);
  await response.body!.cancel();
  await source.done;
});

test('closes idle connections at once and lets requests in work finish', async () => {
  let letGo = () => {};
  const gate = new Promise<void>((resolve) => {
    letGo = resolve;
  });
  let entered = () => {};
  const inside = new Promise<void>((resolve) => {
    entered = resolve;
  });
  const server = await start(async (event) => {
    if (event.pathParameters?.id === 'slow') {
      entered();
      await gate;
    }
    return json(200, { ok: true });
  });
  const agent = new Agent({ keepAlive: true });
  const get = (path: string) =>
    new Promise<{ status: number; connection: string | undefined }>((resolve, reject) => {
      request(`${server.url}${path}`, { agent }, (response) => {
        response
          .resume()
          .on('end', () => resolve({ status: response.statusCode!, connection: response.headers.connection }));
      })
        .on('error', reject)
        .end();
    });
  await get('/things/idle');
  const slow = get('/things/slow');
  await inside;
  const silent = connect(server.port, '127.0.0.1');
  await once(silent, 'connect');
  // A server that answers this has accepted the silent connection before it.
  await get('/things/again');

  const closed = server.close(10_000);
  await once(silent, 'close');
  await expect(get('/things/late')).rejects.toThrow();
  letGo();
  expect(await slow).toEqual({ status: 200, connection: 'close' });
  await closed;
  agent.destroy();
});

test('cuts what is still running when the deadline of the close has passed', async () => {
  const source = endless();
  const server = await start(async () => source.result);
  const response = await fetch(`${server.url}/things/1`);
  await server.close(1);
  await expect(response.text()).rejects.toThrow();
  await source.done;
});

test('says in one sentence that a port is taken', async () => {
  const { port } = await start(echo);
  await expect(
    serve({
      host: '127.0.0.1',
      port,
      routes: [],
      maxBodyBytes: 1,
      bodies: createBodyBudget(1),
      log: pino({ level: 'silent' }),
    }),
  ).rejects.toThrow(`cannot listen on 127.0.0.1:${port}: EADDRINUSE`);
});

test('runs the pipelined requests of a connection one after the other, in their order', async () => {
  let running = 0;
  let most = 0;
  const { port } = await start(async (event) => {
    most = Math.max(most, ++running);
    await new Promise((resolve) => setTimeout(resolve, 1));
    running--;
    return json(200, { id: event.pathParameters?.id });
  });
  const get = (i: number) => `GET /things/${i} HTTP/1.1\r\nHost: x\r\n${i === 99 ? 'Connection: close\r\n' : ''}\r\n`;
  const text = await raw(port, Array.from({ length: 100 }, (_, i) => get(i)).join(''));
  expect([...text.matchAll(/"id":"(\d+)"/g)].map(([, id]) => Number(id))).toEqual(
    Array.from({ length: 100 }, (_, i) => i),
  );
  expect(most).toBe(1);
});

test('runs none of the requests that wait behind one whose connection is gone', async () => {
  const ran: (string | undefined)[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  const { port, seen } = await start(async (event) => {
    ran.push(event.pathParameters?.id);
    await promise;
    return json(200, {});
  });
  const socket = connect(port, '127.0.0.1');
  socket.write('GET /things/1 HTTP/1.1\r\nHost: x\r\n\r\nGET /things/2 HTTP/1.1\r\nHost: x\r\n\r\n');
  await vi.waitUntil(() => ran.length === 1);
  socket.destroy();
  await once(socket, 'close');
  await new Promise((later) => setTimeout(later, 50));
  resolve();
  await vi.waitUntil(() => seen.length === 2);
  expect(ran).toEqual(['1']);
  expect(seen.map(({ status }) => status)).toEqual([499, 499]);
});
