import type { Dispatcher } from 'undici';
import type { Clock } from '../base/clock.ts';
import { freeAtOnce } from '../base/growing-buffer.ts';
import { type ByteBudget, createByteBudget, LARGE_BYTES } from './budget.ts';
import { Call, type CallContext } from './call.ts';
import type { CallResult, UpstreamClient } from './call-result.ts';
import { createOriginPool, type OriginPool } from './connections.ts';
import { createGate } from './gate.ts';

/**
 * Deadlines and signals are looked at this often, by one timer. A listener on the signal would cost every call 2 us of
 * 24, and 10 us where 64 calls share one signal; a cancel has a second to get through.
 */
const TICK_MS = 50;

/**
 * A look that comes later than this by so much tells of a process that stood still (stopped, or starved of its CPU). The
 * answers that came meanwhile are read only after it, and would all be time-outs.
 */
const STOOD_STILL_MS = 1_000;

/** Long decodings at a time: libuv has four threads, which files and DNS use, too. */
const DECODINGS = 2;

/** An origin without a call for this long is forgotten when a new one comes up. */
const ORIGIN_IDLE_MS = 60_000;

/** URLs remembered; callers of one catalogue have a few dozen. */
const MAX_URLS = 1_000;

/** Sent because all of them can be decoded; without it a server is free to choose one that cannot (RFC 9110, 12.5.3). */
const ACCEPT_ENCODING = 'gzip, deflate, br, zstd';

/** Options of the client; times in milliseconds. */
export interface UpstreamClientOptions {
  /** Idle connections kept for each origin. Calls in flight are bounded by the caller's slots, not here. */
  connections: number;
  /** The User-Agent of every call. */
  userAgent: string;
  clock: Clock;
  /** Limit of one dial, TLS included; default 10 s ("Limits of an upstream call" in docs/spec/gateway-rules.md). */
  connectTimeoutMs?: number;
  /** Largest body, both on the wire and decoded; default 64 MiB. */
  maxResponseBytes?: number;
  /** Bytes of large answers held at once (see `ByteBudget`); default 256 MiB. */
  heldBytes?: number;
  /** In place of one of `heldBytes`. */
  budget?: ByteBudget;
}

interface Route {
  origin: string;
  path: string;
}

/**
 * The client that all upstream calls go through: POST, no redirects, no cookies, no proxies. `call` never rejects; what
 * the network or the upstream did is the result's class. Headers are cached by the identity of their object, so a
 * caller passes the same one again (`callTarget` does) and never changes it. An abort takes effect within 50 ms, unless
 * the answer is whole by then. A call's time does not run while this process stands still. `close` ends calls in flight as `aborted`.
 */
export function createUpstreamClient(options: UpstreamClientOptions): UpstreamClient {
  const { clock } = options;
  const pools = new Map<string, OriginPool>();
  const routes = new Map<string, Route | null>();
  const headers = new WeakMap<object, string[]>();
  let stoodStillMs = 0;
  let lastTick = 0;
  const context: CallContext = {
    clock,
    awakeMs: () => clock.monotonic() - stoodStillMs,
    maxResponseBytes: options.maxResponseBytes ?? 64 * 1024 * 1024,
    open: 0,
    pausing: new Set(),
    budget: options.budget ?? createByteBudget(options.heldBytes ?? 256 * 1024 * 1024),
    decoding: createGate(DECODINGS),
  };
  let timer: NodeJS.Timeout | null = null;
  let closed = false;

  function tick(): void {
    const lateMs = clock.monotonic() - lastTick - TICK_MS;
    if (lateMs > STOOD_STILL_MS) stoodStillMs += lateMs;
    lastTick = clock.monotonic();
    const now = context.awakeMs();
    for (const pool of pools.values()) pool.check(now);
    for (const call of context.pausing) call.check(now);
    if (context.open > 0 || timer === null) return;
    clearInterval(timer);
    timer = null;
  }

  function poolOf(origin: string): OriginPool {
    let pool = pools.get(origin);
    if (pool !== undefined) return pool;
    const before = clock.monotonic() - ORIGIN_IDLE_MS;
    for (const [name, other] of pools) {
      if (other.inUse() > 0 || other.lastUsed > before) continue;
      other.close();
      pools.delete(name);
    }
    pool = createOriginPool(origin, {
      keep: options.connections,
      connectTimeoutMs: options.connectTimeoutMs ?? 10_000,
      monotonic: () => clock.monotonic(),
    });
    pools.set(origin, pool);
    return pool;
  }

  function routeOf(url: string): Route | null {
    let route = routes.get(url);
    if (route !== undefined) return route;
    if (routes.size >= MAX_URLS) routes.clear();
    route = parseRoute(url);
    routes.set(url, route);
    return route;
  }

  function headersOf(given: Record<string, string>): string[] {
    let flat = headers.get(given);
    if (flat !== undefined) return flat;
    flat = ['user-agent', options.userAgent, 'accept-encoding', ACCEPT_ENCODING, ...Object.entries(given).flat()];
    headers.set(given, flat);
    return flat;
  }

  return {
    call(request) {
      const route = routeOf(request.url);
      if (closed || request.signal.aborted) return Promise.resolve(unsent(clock, 'aborted'));
      if (route === null) return Promise.resolve(unsent(clock, 'unreachable'));
      if (request.timeoutMs <= 0) return Promise.resolve(unsent(clock, 'timeout'));
      if (timer === null) {
        timer = setInterval(tick, TICK_MS);
        lastTick = clock.monotonic();
      }
      const dispatch: Dispatcher.DispatchOptions = {
        path: route.path,
        method: 'POST',
        headers: headersOf(request.headers),
        body: request.body.length === 1 ? request.body[0]! : Buffer.concat(request.body),
      };
      return new Promise((resolve) => new Call(request, dispatch, poolOf(route.origin), context, resolve).start());
    },
    release(body) {
      if (body === null || body.length < LARGE_BYTES) return;
      const { length } = body;
      freeAtOnce(body);
      context.budget.give(length);
    },
    async close() {
      closed = true;
      for (const call of context.pausing) call.end('aborted');
      for (const pool of pools.values()) pool.close();
      pools.clear();
      if (timer !== null) clearInterval(timer);
      timer = null;
    },
  };
}

function parseRoute(url: string): Route | null {
  if (!URL.canParse(url)) return null;
  const { protocol, origin, pathname, search } = new URL(url);
  return protocol === 'http:' || protocol === 'https:' ? { origin, path: pathname + search } : null;
}

/** The result of a call that was never begun. */
function unsent(clock: Clock, callClass: CallResult['class']): CallResult {
  return {
    class: callClass,
    status: 0,
    body: null,
    parsed: undefined,
    badReason: null,
    message: null,
    contentType: null,
    upstreamRequestId: null,
    retryAfterMs: null,
    startedAt: clock.now(),
    responseStartedAt: null,
    responseEndedAt: null,
  };
}
