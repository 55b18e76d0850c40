import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Context } from 'aws-lambda';
import type { BodyBudget } from '../base/body-budget.ts';
import { ApiError, ConfigError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { SLOW_MS } from './body-rate.ts';
import { callOf, eventOf, type HttpCall } from './call.ts';
import { errorForm } from './error-form.ts';
import { type ApiResult, attachBody, attachStream, requestIdHeaders } from './event.ts';
import { onMalformed } from './malformed.ts';
import { drain, withBody } from './read-body.ts';
import { renderError } from './render.ts';
import { respond } from './respond.ts';
import { type BoundRoute, createMatcher, unknownPath } from './routes.ts';
import { streamBody } from './stream-body.ts';

/** One request as the metrics see it: by pattern, never by path. 499: the client went away before its answer. */
export interface SeenRequest {
  method: string;
  route: string;
  status: number;
  seconds: number;
}

export interface ServeOptions {
  host: string;
  /** 0 takes a free one. */
  port: number;
  routes: readonly BoundRoute[];
  /** Largest body of a route that reads one and has no limit of its own, bytes. */
  maxBodyBytes: number;
  /** The budget of all bodies in memory together. */
  bodies: BodyBudget;
  /** Asked before a path is looked up or a body is read; throws ApiError. How the control port refuses strangers. */
  guard?: (path: string, authorization: string | undefined) => void;
  log: Log;
  onRequest?: (seen: SeenRequest) => void;
  /** How long a client may take nothing of its answer; 60 s unless a test says otherwise. */
  stallMs?: number;
  /** How long a body may come at less than 1 KiB/s; 60 s unless a test says otherwise. */
  slowMs?: number;
}

export interface HttpServer {
  /** The port it listens on. */
  port: number;
  /**
   * Stops accepting, closes idle connections at once, lets requests in work finish for `deadlineMs`, then cuts the rest.
   */
  close(deadlineMs: number): Promise<void>;
}

/** The owner of bodies on routes without an owner: those of the control port, which are behind its guard. */
const ADMIN = 'admin';
const STALL_MS = 60_000;
/** Over what a load balancer keeps idle connections (60 s): the side that reuses one must not be the last to know. */
const KEEP_ALIVE_MS = 65_000;
const HEADERS_MS = 30_000;
/** A whole upload: 256 MiB at 2.4 Mbit/s. */
const REQUEST_MS = 900_000;
/** Requests of one connection that wait for their turn, each in a few KiB. */
const MAX_PIPELINED = 1000;
/** Of one port. A connection without a request takes about 10 KiB. */
const MAX_CONNECTIONS = 10_000;
const MAX_HEADER_BYTES = 64 * 1024;
/** The bytes that are still read of a refused body, and for how long. */
const DRAIN_BYTES = 256 * 1024 * 1024;
const DRAIN_MS = 30_000;

/**
 * Runs Lambda handlers on a plain HTTP server: builds the event, passes body bytes beside it, streams what a handler
 * streams. Throws ConfigError when it cannot listen.
 */
export async function serve(options: ServeOptions): Promise<HttpServer> {
  const match = createMatcher(options.routes);
  const { stallMs = STALL_MS, slowMs = SLOW_MS } = options;
  const busy = new Map<Socket, Set<ServerResponse>>();
  const turns = new WeakMap<Socket, Promise<void>>();
  let closing = false;

  const server = createServer({
    keepAliveTimeout: KEEP_ALIVE_MS,
    headersTimeout: HEADERS_MS,
    requestTimeout: REQUEST_MS,
    maxHeaderSize: MAX_HEADER_BYTES,
    requireHostHeader: false, // Node's own 400 for it would carry no request id
  });

  server.maxConnections = MAX_CONNECTIONS;

  const answer = async (req: IncomingMessage, res: ServerResponse, call: HttpCall): Promise<ApiResult | null> => {
    options.guard?.(call.path, req.headers.authorization);
    const found = match(call.method, call.path);
    if (found.kind === 'unknown') {
      if (call.method === 'OPTIONS' && call.path === '*') return { statusCode: 204, headers: { allow: ALL_METHODS } };
      throw unknownPath(call.path);
    }
    call.route = found.kind === 'method' ? found.pattern : found.route.pattern;
    if (found.kind === 'method') {
      if (call.method === 'OPTIONS') return { statusCode: 204, headers: { allow: found.allow } };
      throw new ApiError('method_not_allowed', undefined, { headers: { allow: found.allow } });
    }
    const event = eventOf(req, call, found.route, found.parameters);
    const context = { awsRequestId: call.requestId } as Context;
    const { route } = found;
    const begin = () => {
      if (call.expectsContinue) res.writeContinue();
      call.expectsContinue = false;
    };
    if (route.body === 'stream') attachStream(event, streamBody(req, { flow: call.body, begin, slowMs }));
    if (route.body !== 'read') return route.run(event, context);
    const account = options.bodies.open((await route.admit?.(event)) ?? ADMIN);
    const maxBytes = route.maxBytes ?? options.maxBodyBytes;
    return withBody(req, { flow: call.body, maxBytes, account, begin, slowMs }, (body) => {
      attachBody(event, body, account);
      return route.run(event, context);
    });
  };

  const send = async (req: IncomingMessage, res: ServerResponse, call: HttpCall, result: ApiResult): Promise<void> => {
    call.status = result.statusCode;
    call.batchId = result.batchId;
    for (const [name, value] of Object.entries(requestIdHeaders(call.requestId))) res.setHeader(name, value);
    // Told no "continue", the client may skip its body or send it: only a new connection has no such doubt.
    // The rest of a body that came too slowly is not waited for.
    const tooSlow = result.statusCode === 408;
    if (closing || call.expectsContinue || tooSlow) res.setHeader('connection', 'close');
    const closes = closing || call.expectsContinue || !res.shouldKeepAlive;
    const drained = call.body && !tooSlow ? drain(req, call.body, DRAIN_BYTES, DRAIN_MS) : null;
    const lingers = closes && !req.complete ? drained : null;
    call.sent = await respond(res, result, { headOnly: call.method === 'HEAD', stallMs, lingers });
  };

  const handle = async (req: IncomingMessage, res: ServerResponse, call: HttpCall): Promise<void> => {
    const { socket } = req;
    const answers = busy.get(socket);
    try {
      if (socket.destroyed) return;
      const result = await answer(req, res, call).catch((error) =>
        renderError(error, call.requestId, options.log, errorForm(call.path, req.headers)),
      );
      if (result) await send(req, res, call, result);
    } catch (error) {
      // The stream failed: before its first byte the answer can still say so, later only the broken connection can.
      const failure = renderError(error, call.requestId, options.log, errorForm(call.path, req.headers));
      if (!res.headersSent && !res.destroyed) await send(req, res, call, failure);
      else call.broken = true;
    } finally {
      if (!call.sent) {
        if (!call.broken) call.status = 499;
        res.destroy();
      }
      answers?.delete(res);
      if (closing && answers?.size === 0) socket.end();
      report(options, call);
    }
  };

  // Of a connection's pipelined requests one runs at a time: each answer would else wait in memory for those before it.
  const onRequest = (expectsContinue: boolean) => (req: IncomingMessage, res: ServerResponse) => {
    const { socket } = req;
    const call = callOf(req, expectsContinue);
    res.on('error', () => {}); // a client that disconnects shows as 'close'
    const answers = busy.get(socket)?.add(res);
    if ((answers?.size ?? 0) > MAX_PIPELINED) socket.destroy();
    const earlier = turns.get(socket);
    const run = () =>
      handle(req, res, call).catch((error) => options.log.error({ err: error }, 'request handling failed'));
    const mine = earlier === undefined ? run() : earlier.then(run);
    turns.set(socket, mine);
    void mine.then(() => {
      if (turns.get(socket) === mine) turns.delete(socket);
    });
  };
  server.on('request', onRequest(false));
  server.on('checkContinue', onRequest(true));
  server.on('checkExpectation', onRequest(false)); // unknown expectations are passed over, as most servers do
  server.on('connection', (socket: Socket) => {
    busy.set(socket, new Set());
    socket.once('close', () => busy.delete(socket));
  });
  server.on('clientError', (error, stream) => {
    const socket = stream as Socket;
    const answers = [...(busy.get(socket) ?? [])];
    onMalformed(error, socket, answers.length > 1 || answers.some((res) => res.headersSent));
  });

  const port = await listen(server, options);
  return {
    port,
    close: async (deadlineMs) => {
      closing = true;
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const [socket, answers] of busy) if (answers.size === 0) socket.destroy();
      const timer = setTimeout(() => server.closeAllConnections(), deadlineMs);
      await closed;
      clearTimeout(timer);
    },
  };
}

const ALL_METHODS = 'GET, HEAD, POST, PUT, DELETE, OPTIONS';

/** One line a request: the pattern, never the query or a body. Probes are many and say nothing: `debug`. */
function report(options: ServeOptions, call: HttpCall): void {
  const ms = performance.now() - call.startedAt;
  const { method, route, status, requestId, batchId, broken } = call;
  options.log[route === '/healthz' ? 'debug' : 'info'](
    { method, route, status, ms: Math.round(ms * 10) / 10, requestId, batchId, ...(broken ? { broken } : {}) },
    'request',
  );
  options.onRequest?.({ method, route, status, seconds: ms / 1000 });
}

function listen(server: Server, { host, port }: ServeOptions): Promise<number> {
  return new Promise((resolve, reject) => {
    const onError = (error: NodeJS.ErrnoException) =>
      reject(new ConfigError(`cannot listen on ${host}:${port}: ${error.code ?? error.message}`, { cause: error }));
    server.once('error', onError);
    server.listen(port, host, () => {
      server.off('error', onError);
      resolve((server.address() as AddressInfo).port);
    });
  });
}
