import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { type Answer, directiveOf, goodAnswer, send, sendStatus } from './upstream-directives.ts';

/** One request as it arrived. */
export interface ReceivedRequest {
  method: string;
  path: string;
  /** Lower-case names. */
  headers: Record<string, string>;
  /** Name, value, name, value, as sent. */
  rawHeaders: string[];
  body: Buffer;
  /** Top-level `model` of the body; empty if it is missing. */
  model: string;
  /** Bearer or x-api-key value; empty without. */
  key: string;
  /** Epoch ms. */
  at: number;
  /** The client closed before it had a whole answer. */
  closedEarly: boolean;
}

/** A running upstream; `received` grows until `forget`. */
export interface TestUpstream {
  url: string;
  port: number;
  received: ReceivedRequest[];
  /** Connections accepted so far. */
  connections: number;
  /** Most requests that were open at once. */
  maxOpen: number;
  /** How many requests carried this model, or this key. */
  countOf(by: 'model' | 'key', value: string): number;
  /** Forgets what was received and counted. */
  forget(): void;
  /** Requests that carry this key get that status (null: no longer). Goes before directives. */
  failKey(key: string, status: number | null, headers?: Record<string, string>): void;
  /** Answers instead of everything else; null goes back to directives. */
  answerWith(answer: ((request: ReceivedRequest, response: ServerResponse) => void) | null): void;
  /** From now on requests are received but not answered, until the returned function is called. */
  hold(): () => void;
  /** Resolves once at least `count` requests (that fit) have been received. */
  waitForRequests(count: number, fits?: (request: ReceivedRequest) => boolean): Promise<void>;
  /** Resolves once a request (that fits) was given up by its client. */
  waitForClosedEarly(fits?: (request: ReceivedRequest) => boolean): Promise<void>;
  /** Stops listening and breaks every connection: dials are refused until `up`. */
  down(): Promise<void>;
  /** Listens again, on the same port. */
  up(): Promise<void>;
  close(): Promise<void>;
}

/** Options of `startUpstream`. */
export interface TestUpstreamOptions {
  port?: number;
  /** Serves https with this certificate. */
  tls?: { key: string; cert: string };
  /** How long idle connections are kept, ms (5,000 as Node does). */
  keepAliveMs?: number;
}

/**
 * A real HTTP server that records what it gets and misbehaves on command: by the request's model name (see
 * upstream-directives.ts), by key, or by a function.
 */
export async function startUpstream(options: TestUpstreamOptions = {}): Promise<TestUpstream> {
  const failing = new Map<string, { status: number; headers: Record<string, string> }>();
  const waiters = new Set<() => void>();
  let answer: Parameters<TestUpstream['answerWith']>[0] = null;
  let held: Promise<void> | null = null;
  let open = 0;
  let server: Server;

  const handle = async (message: IncomingMessage, response: ServerResponse): Promise<void> => {
    open++;
    upstream.maxOpen = Math.max(upstream.maxOpen, open);
    const request = await receive(message);
    response.on('close', () => {
      open--;
      request.closedEarly = !response.writableFinished;
      wake();
    });
    upstream.received.push(request);
    wake();
    if (held !== null) await held;
    if (response.destroyed) return;
    const failure = failing.get(request.key);
    if (answer !== null) answer(request, response);
    else if (failure) sendStatus(response, request.path, request.model, failure.status, failure.headers);
    else (directiveOf(request.model) ?? ordinary)(response, request.path, request.model);
  };

  const listen = async (port: number): Promise<number> => {
    const onRequest = (message: IncomingMessage, response: ServerResponse) => {
      // A body that its client did not finish ends in an error; there is nobody to answer.
      handle(message, response).catch(() => response.destroy());
    };
    server = options.tls ? createSecureServer(options.tls, onRequest) : createServer(onRequest);
    server.keepAliveTimeout = options.keepAliveMs ?? 5_000;
    server.on('connection', () => upstream.connections++);
    await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, '127.0.0.1', resolve));
    return (server.address() as AddressInfo).port;
  };

  const wake = () => {
    for (const waiter of waiters) waiter();
  };
  const until = (holds: () => boolean) =>
    new Promise<void>((resolve) => {
      const waiter = () => {
        if (!holds()) return;
        waiters.delete(waiter);
        resolve();
      };
      waiters.add(waiter);
      waiter();
    });

  const upstream: TestUpstream = {
    url: '',
    port: 0,
    received: [],
    connections: 0,
    maxOpen: 0,
    countOf: (by, value) => upstream.received.filter((request) => request[by] === value).length,
    forget() {
      upstream.received.length = 0;
      upstream.connections = 0;
      upstream.maxOpen = 0;
    },
    failKey(key, status, headers = {}) {
      if (status === null) failing.delete(key);
      else failing.set(key, { status, headers });
    },
    answerWith(next) {
      answer = next;
    },
    hold() {
      const gate = Promise.withResolvers<void>();
      held = gate.promise;
      return () => {
        if (held === gate.promise) held = null;
        gate.resolve();
      };
    },
    waitForRequests: (count, fits = () => true) => until(() => upstream.received.filter(fits).length >= count),
    waitForClosedEarly: (fits = () => true) =>
      until(() => upstream.received.some((request) => request.closedEarly && fits(request))),
    async down() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      server.closeAllConnections();
      await closed;
    },
    async up() {
      await listen(upstream.port);
    },
    close: () => (server.listening ? upstream.down() : Promise.resolve()),
  };
  upstream.port = await listen(options.port ?? 0);
  upstream.url = `${options.tls ? 'https' : 'http'}://127.0.0.1:${upstream.port}`;
  return upstream;
}

const ordinary: Answer = (response, path, model) => {
  const body = goodAnswer(path, model);
  if (body === '{}') sendStatus(response, path, model, 404);
  else send(response, 200, body);
};

async function receive(message: IncomingMessage): Promise<ReceivedRequest> {
  const chunks: Buffer[] = [];
  for await (const chunk of message) chunks.push(chunk as Buffer);
  const body = Buffer.concat(chunks);
  const headers: Record<string, string> = {};
  for (const [name, value] of Object.entries(message.headers)) headers[name] = String(value);
  return {
    method: message.method ?? '',
    path: message.url ?? '',
    headers,
    rawHeaders: message.rawHeaders,
    body,
    model: modelOf(body),
    key: headers['x-api-key'] ?? headers.authorization?.replace(/^Bearer /, '') ?? '',
    at: Date.now(),
    closedEarly: false,
  };
}

function modelOf(body: Buffer): string {
  try {
    const model: unknown = JSON.parse(body.toString()).model;
    return typeof model === 'string' ? model : '';
  } catch {
    return '';
  }
}
