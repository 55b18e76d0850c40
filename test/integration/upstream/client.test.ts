import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { createServer, type Server, type Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import { type ByteBudget, createByteBudget } from '../../../lib/upstream/budget.ts';
import type { CallRequest, CallResult, UpstreamClient } from '../../../lib/upstream/call-result.ts';
import { createUpstreamClient } from '../../../lib/upstream/client.ts';
import { startUpstream, type TestUpstream } from '../../support/upstream.ts';

const MIB = 1024 * 1024;

let upstream: TestUpstream;
let client: UpstreamClient;

beforeAll(async () => {
  upstream = await startUpstream();
  client = createUpstreamClient({ connections: 8, userAgent: 'relay-batch/test', clock: systemClock });
});
afterEach(() => {
  upstream.answerWith(null);
  upstream.forget();
});
afterAll(async () => {
  await client.close();
  await upstream.close();
});

function request(model: string, over: Partial<CallRequest> = {}): CallRequest {
  return {
    url: `${upstream.url}/v1/chat/completions`,
    headers: { 'content-type': 'application/json', authorization: 'Bearer k1' },
    body: [Buffer.from(JSON.stringify({ model, messages: [] }))],
    adapter: 'openai',
    timeoutMs: 20_000,
    signal: new AbortController().signal,
    ...over,
  };
}

const call = (model: string, over: Partial<CallRequest> = {}): Promise<CallResult> => client.call(request(model, over));

describe('the request', () => {
  test('is a POST with the item bytes as they are, from however many pieces, and only our own headers', async () => {
    const pieces = ['{"model": "plain" ,"b":1,', '"a":9007199254740993,"n":1.0,"e":1e400,', '"z":"\\u0000\\ud800"}'];
    const result = await call('', { body: pieces.map((piece) => Buffer.from(piece)) });
    expect(result.class).toBe('success');
    const [seen] = upstream.received;
    expect(seen?.body.toString()).toBe(pieces.join(''));
    expect([seen?.method, seen?.path]).toEqual(['POST', '/v1/chat/completions']);
    expect(Object.keys(seen?.headers ?? {}).sort()).toEqual(
      'accept-encoding,authorization,connection,content-length,content-type,host,user-agent'.split(','),
    );
    expect(seen?.headers['user-agent']).toBe('relay-batch/test');
  });

  test('keeps its connection for the next one', async () => {
    const own = createUpstreamClient({ connections: 1, userAgent: 'x', clock: systemClock });
    for (let i = 0; i < 5; i++) expect((await own.call(request('plain'))).class).toBe('success');
    expect(upstream.connections).toBe(1);
    await own.close();
  });

  test('never follows a redirect: 302 is a client error and the target is not called', async () => {
    const result = await call('redirect');
    expect([result.class, result.status]).toEqual(['client_error', 302]);
    expect(upstream.received).toHaveLength(1);
  });

  test('with a header that HTTP does not allow ends as unreachable and is not sent', async () => {
    const result = await call('plain', { headers: { 'x-bad': 'a\r\nb: c' } });
    expect(result.class).toBe('unreachable');
    expect(upstream.received).toHaveLength(0);
  });
});

describe('a good answer', () => {
  test('is a success with its very bytes, the parsed body, the request id and three ascending times', async () => {
    const text = '{"choices":[],"id":9007199254740993,"usage":{"b":1.0,"a":1e400},"s":"\\u0000\\ud800"}';
    upstream.answerWith((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'request-id': 'req_7' });
      response.end(text);
    });
    const result = await call('plain');
    expect(result).toMatchObject({ class: 'success', status: 200, badReason: null, retryAfterMs: null });
    expect(result.body?.toString()).toBe(text);
    expect(result.parsed).toEqual(JSON.parse(text));
    expect([result.contentType, result.upstreamRequestId]).toEqual(['application/json', 'req_7']);
    const times = [result.startedAt, result.responseStartedAt, result.responseEndedAt];
    expect(times).toEqual([...times].map(Number).sort((a, b) => a - b));
  });

  test.each(['gzip', 'deflate', 'deflateraw', 'br', 'zstd'])('in %s is decoded, on 200 and on 400', async (coding) => {
    const good = await call(coding);
    expect(good).toMatchObject({ class: 'success', status: 200 });
    expect(JSON.parse(good.body!.toString())).toMatchObject({ object: 'chat.completion' });
    const bad = await call(`${coding}-400`);
    expect(bad).toMatchObject({ class: 'client_error', status: 400 });
    expect(JSON.parse(bad.body!.toString())).toMatchObject({ error: { message: 'encoded' } });
  });

  test('of several megabytes, compressed, arrives whole and is validated without being built', async () => {
    const result = await call('big-gzip-3');
    expect(result.class).toBe('success');
    expect(Object.keys(result.parsed as object).filter((name) => name !== 'choices' && name !== 'usage')).toEqual([]);
    expect(result.body!.length).toBeGreaterThan(3 * 1024 * 1024);
  });

  test('after early hints, or with Connection: close, is a success', async () => {
    expect(await call('early-hints')).toMatchObject({ class: 'success', status: 200 });
    expect(await call('processing')).toMatchObject({ class: 'success', status: 200 });
    expect(await call('close-after')).toMatchObject({ class: 'success', status: 200 });
    expect(await call('close-after')).toMatchObject({ class: 'success', status: 200 });
  });

  test('after 100 Continue that nobody asked for, whole or in pieces, is a success', async () => {
    for (const model of ['continue', 'continue', 'continue-slow', 'status-500', 'continue']) {
      const status = model === 'status-500' ? 500 : 200;
      expect(await call(model)).toMatchObject({ status });
    }
  });

  test('with a head of up to 64 KiB is a success, with a larger one a broken connection', async () => {
    expect(await call('wide-60')).toMatchObject({ class: 'success', status: 200 });
    expect(await call('wide-70')).toMatchObject({ class: 'network' });
  });

  test('that has an error beside its result field is a response', async () => {
    expect(await call('error-beside-200')).toMatchObject({ class: 'success' });
  });
});

describe('a status', () => {
  test.each([
    ['status-400', 'client_error'],
    ['status-401', 'auth'],
    ['status-403', 'forbidden'],
    ['status-404', 'client_error'],
    ['status-408', 'transient'],
    ['status-409', 'transient'],
    ['status-425', 'transient'],
    ['status-413', 'client_error'],
    ['status-429', 'rate_limit_short'],
    ['retry-after-5', 'rate_limit_short'],
    ['retry-after-6', 'rate_limit_long'],
    ['status-500', 'server_error'],
    ['status-529', 'server_error'],
    ['status-599', 'server_error'],
    ['status-600', 'client_error'],
  ])('%s is %s, and the error body is there', async (model, expected) => {
    const result = await call(model);
    expect(result.class).toBe(expected);
    expect(JSON.parse(result.body!.toString())).toHaveProperty('error');
  });

  test('with a Retry-After in seconds or as a date gives it in milliseconds', async () => {
    expect((await call('retry-after-30')).retryAfterMs).toBe(30_000);
    // The date stands in whole seconds, and so does the Date header it is relative to.
    expect((await call('retry-after-date-30')).retryAfterMs).toBeOneOf([29_000, 30_000]);
  });

  test('without a body by HTTP is whole, whatever Content-Length it carries', async () => {
    expect(await call('status-204')).toMatchObject({ class: 'bad_response', status: 204, badReason: 'not_json' });
    expect(await call('status-304')).toMatchObject({ class: 'client_error', status: 304 });
    expect(await call('plain')).toMatchObject({ class: 'success' });
  });

  test('with an HTML page keeps its class', async () => {
    const result = await call('html-503');
    expect(result).toMatchObject({ class: 'server_error', status: 503, contentType: 'text/html' });
  });
});

describe('a 2xx that is no response', () => {
  test.each([
    ['html-200', 'not_json'],
    ['empty-200', 'not_json'],
    ['empty-204', 'not_json'],
    ['latin1-200', 'not_json'],
    ['bom-200', 'not_json'],
    ['half-200', 'not_json'],
    ['encoding-snappy', 'not_json'],
    ['encoding-gzip', 'not_json'],
    ['null-200', 'no_response'],
    ['array-200', 'no_response'],
    ['string-200', 'no_response'],
    ['refusal-in-200', 'error_inside'],
  ])('%s is a bad response: %s', async (model, badReason) => {
    expect(await call(model)).toMatchObject({ class: 'bad_response', badReason, parsed: undefined });
  });

  test('has the class of the code that it names', async () => {
    expect(await call('error-in-200')).toMatchObject({
      class: 'rate_limit_short',
      status: 200,
      badReason: 'error_inside',
      message: 'slow down',
    });
  });
});

describe('a connection that breaks after the request was written', () => {
  test.each(['cut', 'cut-400', 'cut-chunked', 'reset', 'drop', 'garbage'])('%s is network', async (model) => {
    const result = await call(model);
    expect(result).toMatchObject({ class: 'network', body: null });
    expect(upstream.received).toHaveLength(1);
  });
});

describe('an upstream that cannot be reached', () => {
  test('is dialled three times and is unreachable, without a call', async () => {
    let dials = 0;
    const server = createServer((socket) => {
      dials++;
      socket.destroy();
    });
    await listening(server);
    // TLS towards a server that hangs up: the dial fails, and can be counted.
    const result = await call('plain', { url: `https://127.0.0.1:${portOf(server)}/v1/chat/completions` });
    expect(result).toMatchObject({ class: 'unreachable', status: 0, responseStartedAt: null });
    expect(dials).toBe(3);
    server.close();
  });

  test.each([
    ['a refused port', 'http://127.0.0.1:1/v1/x'],
    ['a name that does not resolve', 'http://no-such-host.invalid/v1/x'],
    ['no URL', 'not a url'],
    ['another scheme', 'ftp://127.0.0.1/v1/x'],
  ])('%s is unreachable', async (_name, url) => {
    expect(await call('plain', { url })).toMatchObject({ class: 'unreachable', status: 0 });
  });

  test('that comes back between two dials gets the call', async () => {
    const own = await startUpstream();
    await own.down();
    const pending = call('plain', { url: `${own.url}/v1/chat/completions` });
    await own.up();
    expect(await pending).toMatchObject({ class: 'success' });
    await own.close();
  });

  test('and whose connection is never accepted within the connect timeout is unreachable', async () => {
    const { server, url } = await silentTlsServer();
    const own = createUpstreamClient({ connections: 1, userAgent: 'x', clock: systemClock, connectTimeoutMs: 50 });
    // TCP connects, TLS never does: the connect timeout covers both.
    expect(await own.call(request('plain', { url }))).toMatchObject({ class: 'unreachable' });
    await own.close();
    server.close();
  });

  test('is given up when the time limit ends during the dial', async () => {
    const { server, url, accepted } = await silentTlsServer();
    expect(await call('plain', { url, timeoutMs: 100 })).toMatchObject({ class: 'timeout', status: 0 });
    await once((await accepted).resume(), 'close');
    server.close();
  });
});

describe('the time limit', () => {
  test.each(['hang', 'hang-body', 'drip'])('holds against %s, and the connection is closed', async (model) => {
    expect(await call(model, { timeoutMs: 150 })).toMatchObject({ class: 'timeout', body: null });
    await upstream.waitForClosedEarly();
    expect(await call('plain')).toMatchObject({ class: 'success' });
  });

  test('does not run while the process stands still, and goes on afterwards', async () => {
    let aheadMs = 0;
    let looks = 0;
    const monotonic = () => {
      looks++;
      return systemClock.monotonic() + aheadMs;
    };
    const own = createUpstreamClient({ connections: 2, userAgent: 'x', clock: { ...systemClock, monotonic } });
    const release = upstream.hold();
    const answered = own.call(request('plain', { timeoutMs: 10_000 }));
    const hanging = own.call(request('hang', { timeoutMs: 10_000 }));
    await upstream.waitForRequests(2);
    // Frozen for a minute: the first look after it must not end them, though both limits are over by the clock.
    aheadMs = 60_000;
    const before = looks;
    let ended = false;
    void answered.then(() => {
      ended = true;
    });
    while (looks < before + 8 && !ended) await new Promise((resolve) => setTimeout(resolve, 5));
    release();
    expect(await answered).toMatchObject({ class: 'success' });
    // Time that passes look by look counts: 400 ms with each of them.
    const passing = setInterval(() => {
      aheadMs += 400;
    }, 50);
    expect(await hanging).toMatchObject({ class: 'timeout' });
    clearInterval(passing);
    await own.close();
  });

  test('that is already spent sends nothing', async () => {
    expect(await call('plain', { timeoutMs: 0 })).toMatchObject({ class: 'timeout' });
    expect(upstream.received).toHaveLength(0);
  });
});

describe('an abort', () => {
  test.each(['hang', 'hang-body'])('during %s ends the call and closes the connection', async (model) => {
    const controller = new AbortController();
    const pending = call(model, { signal: controller.signal });
    await upstream.waitForRequests(1);
    controller.abort();
    expect(await pending).toMatchObject({ class: 'aborted', body: null });
    await upstream.waitForClosedEarly();
  });

  test('before the call sends nothing', async () => {
    expect(await call('plain', { signal: AbortSignal.abort() })).toMatchObject({ class: 'aborted' });
    expect(upstream.received).toHaveLength(0);
  });

  test('during the dial closes the dial', async () => {
    const { server, url, accepted } = await silentTlsServer();
    const controller = new AbortController();
    const pending = call('plain', { url, signal: controller.signal });
    const socket = await accepted;
    controller.abort();
    expect(await pending).toMatchObject({ class: 'aborted' });
    await once(socket.resume(), 'close');
    server.close();
  });

  test('after a whole answer changes nothing', async () => {
    const controller = new AbortController();
    const pending = call('plain', { signal: controller.signal });
    void pending.then(() => controller.abort());
    expect(await pending).toMatchObject({ class: 'success' });
  });

  test('by close ends every call in flight, a pause between dials included, and later calls', async () => {
    const own = createUpstreamClient({ connections: 1, userAgent: 'x', clock: systemClock });
    const hanging = [own.call(request('hang')), own.call(request('hang')), own.call(request('hang'))];
    const pausing = own.call(request('plain', { url: 'http://127.0.0.1:1/' }));
    await upstream.waitForRequests(3);
    await own.close();
    const results = await Promise.all([...hanging, own.call(request('plain'))]);
    expect(results.map((result) => result.class)).toEqual(['aborted', 'aborted', 'aborted', 'aborted']);
    expect((await pausing).class).toBeOneOf(['aborted', 'unreachable']);
  });
});

describe('a large answer', () => {
  test('waits for room when many come at once; all of them arrive, and their memory is free once they are released', async () => {
    const own = createUpstreamClient({
      connections: 8,
      userAgent: 'x',
      clock: systemClock,
      heldBytes: 8 * 1024 * 1024,
    });
    const text = JSON.stringify({ choices: [], filler: Array.from({ length: 500_000 }, (_, i) => i) });
    upstream.answerWith((_request, response) => {
      response.setHeader('content-type', 'application/json');
      response.end(text);
    });
    const calls = Array.from({ length: 8 }, async () => {
      const result = await own.call(request('plain'));
      const whole = result.body?.equals(Buffer.from(text));
      own.release(result.body);
      return [result.class, whole, result.body?.buffer.byteLength];
    });
    expect(await Promise.all(calls)).toEqual(calls.map(() => ['success', true, 0]));
    await own.close();
  });

  test('that is compressed counts as what it becomes: many at once keep to the budget', async () => {
    const budget = watchedBudget(8 * MIB);
    const own = createUpstreamClient({
      connections: 16,
      userAgent: 'x',
      clock: systemClock,
      budget,
    });
    const size = 6 * MIB;
    const small = gzipSync(`{"choices":[],"filler":"${'x'.repeat(size)}"}`);
    upstream.answerWith((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-encoding': 'gzip' });
      response.end(small);
    });
    const calls = Array.from({ length: 16 }, async () => {
      const result = await own.call(request('plain'));
      expect(result.class).toBe('success');
      expect(result.body!.length).toBeGreaterThan(size);
      await setImmediate();
      own.release(result.body);
    });
    await Promise.all(calls);
    expect(small.length).toBeLessThan(16 * 1024);
    // The budget, one answer more, and what each has reserved ahead.
    expect(budget.peak()).toBeGreaterThan(8 * MIB);
    expect(budget.peak()).toBeLessThan(8 * MIB + size + (calls.length * MIB) / 4 + MIB);
    expect(budget.held()).toBe(0);
    await own.close();
  });

  test('that is a small gzip of 63 MiB is refused before it is that large, and nothing of it stays counted', async () => {
    const budget = watchedBudget(256 * MIB);
    const own = createUpstreamClient({ connections: 1, userAgent: 'x', clock: systemClock, budget });
    const bomb = gzipSync(Buffer.alloc(63 * MIB, ' '));
    upstream.answerWith((_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-encoding': 'gzip' });
      response.end(bomb);
    });
    expect(await own.call(request('plain'))).toMatchObject({ class: 'too_large', body: null });
    expect(budget.peak()).toBeLessThan(bomb.length * 200 + 2 * MIB);
    expect(budget.held()).toBe(0);
    await own.close();
  });

  test.each(['big-2', 'big-chunked-2', 'big-gzip-2'])('%s over the limit is too large', async (model) => {
    const own = createUpstreamClient({
      connections: 1,
      userAgent: 'x',
      clock: systemClock,
      maxResponseBytes: 1024 * 1024,
    });
    expect(await own.call(request(model))).toMatchObject({ class: 'too_large', body: null });
    expect(await own.call(request('plain'))).toMatchObject({ class: 'success' });
    await own.close();
  });

  test('of 65 MiB is too large by default, compressed as well, and its connection is closed', async () => {
    expect(await call('big-65')).toMatchObject({ class: 'too_large', status: 200 });
    await upstream.waitForClosedEarly();
    expect(await call('big-gzip-65')).toMatchObject({ class: 'too_large' });
  });
});

describe('an answer in 1-byte chunks', () => {
  test('arrives whole, and takes no more memory than any other', async () => {
    const text = JSON.stringify({ choices: [], filler: Array.from({ length: 10_000 }, (_, i) => i) });
    upstream.answerWith((_request, response) => {
      response.setHeader('content-type', 'application/json');
      response.flushHeaders();
      const chunks = [...Buffer.from(text)].map((byte) => `1\r\n${String.fromCharCode(byte)}\r\n`);
      response.socket!.end(`${chunks.join('')}0\r\n\r\n`);
    });
    const result = await call('plain');
    expect(result.class).toBe('success');
    expect(result.body!.equals(Buffer.from(text))).toBe(true);
    expect(result.body!.buffer.byteLength).toBeLessThanOrEqual(4 * text.length);
  });
});

describe('an idle connection', () => {
  test('that the upstream has closed since is replaced without a failure', async () => {
    const own = createUpstreamClient({ connections: 4, userAgent: 'x', clock: systemClock });
    const server = createServer();
    await listening(server);
    const url = `http://127.0.0.1:${portOf(server)}/v1/chat/completions`;
    const body = '{"choices":[]}';
    const sockets: Socket[] = [];
    // Keep-alive is promised and then broken: the connection is reset once the answer has been taken.
    server.on('connection', (socket) => {
      sockets.push(socket);
      socket.on('error', () => {});
      socket.on('data', () => socket.write(`HTTP/1.1 200 OK\r\ncontent-length: ${body.length}\r\n\r\n${body}`));
    });
    for (let i = 0; i < 20; i++) {
      expect((await own.call(request('plain', { url }))).class).toBe('success');
      const socket = sockets.at(-1)!;
      socket.resetAndDestroy();
      await once(socket, 'close');
    }
    expect(sockets).toHaveLength(20);
    await own.close();
    server.close();
  });
});

/** A budget that remembers the most it ever held. */
function watchedBudget(cap: number): ByteBudget & { peak(): number } {
  const budget = createByteBudget(cap);
  let peak = 0;
  return {
    ...budget,
    take(receiver, bytes) {
      const goesOn = budget.take(receiver, bytes);
      peak = Math.max(peak, budget.held());
      return goesOn;
    },
    peak: () => peak,
  };
}

async function listening(server: Server): Promise<void> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
}

function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

/** Accepts TCP and never says a word. */
async function silentTlsServer(): Promise<{ server: Server; url: string; accepted: Promise<Socket> }> {
  const { promise, resolve } = Promise.withResolvers<Socket>();
  const server = createServer((socket) => {
    socket.on('error', () => {});
    resolve(socket);
  });
  await listening(server);
  return { server, url: `https://127.0.0.1:${portOf(server)}/v1/chat/completions`, accepted: promise };
}
