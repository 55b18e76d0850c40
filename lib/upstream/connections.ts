import type { Socket } from 'node:net';
import { buildConnector, Client } from 'undici';
import { dialedBy, skipContinue } from '../runtime/sockets.ts';

/** One undici client, which is one connection at a time: it dials when it is not connected, and again after a close. */
export interface Connection {
  client: Client;
  /** The socket while it is being dialled: undici cannot abort a dial, so a caller that gives up destroys it. */
  dialing: Socket | null;
  /** Dials begun in the life of this connection: tells a failed dial from a stale connection that broke unused. */
  dials: number;
  /** True until the head of the answer is read. */
  awaitsHead: boolean;
  /** The call that has it; null while it is idle. */
  holder: Holder | null;
  /** Its place in the pool's list. */
  index: number;
}

/** A call that holds a connection, as the pool sees it. */
export interface Holder {
  /** Ends itself when its deadline has passed or its signal has aborted; `now` as deadlines are measured. */
  check(now: number): void;
  end(callClass: 'aborted'): void;
}

/** The connections of one origin. */
export interface OriginPool {
  /** The connection used last, else a new one (which dials on its first call). */
  take(holder: Holder): Connection;
  /** Returns a connection after a whole answer. */
  release(connection: Connection): void;
  /** Closes a connection for good, a dial in progress included. */
  drop(connection: Connection): void;
  /** Lets every holder check itself. */
  check(now: number): void;
  /** Ends every holder as `aborted`, and closes all connections. */
  close(): void;
  /** Connections that have a holder. */
  inUse(): number;
  /** Monotonic ms of the last `take`. */
  lastUsed: number;
}

/** The settings that all pools of a client share. */
export interface PoolOptions {
  /** Idle connections kept; more are closed when they return. */
  keep: number;
  connectTimeoutMs: number;
  /** Monotonic ms. */
  monotonic(): number;
}

/**
 * Idle connections are closed after 4 s. Most servers close at 5 s (Node's own default) or later, and a server that
 * closes first can cost us a call that was just being written. A server's own Keep-Alive hint counts, less 1 s.
 */
const KEEP_ALIVE = { keepAliveTimeout: 4_000, keepAliveMaxTimeout: 60_000, keepAliveTimeoutThreshold: 1_000 };

/** Of an answer's head. Some gateways add headers of many KiB. */
const MAX_HEAD_BYTES = 64 * 1024;

const noop = () => {};

/**
 * A stack of single-connection clients instead of undici's Pool. Taking one is O(1), where the Pool searches all of them.
 * The warm ones are reused first, and an abandoned dial does not block a place (about 5-10 % more calls/s at 64
 * connections). The number of connections out is bounded by the caller's slots.
 */
export function createOriginPool(origin: string, options: PoolOptions): OriginPool {
  const dial = buildConnector({ timeout: options.connectTimeoutMs });
  const idle: Connection[] = [];
  const all: Connection[] = [];

  function create(): Connection {
    const client = new Client(origin, {
      ...KEEP_ALIVE,
      pipelining: 1,
      // The call's own deadline covers head and body; undici's timers would be armed twice for every call.
      headersTimeout: 0,
      bodyTimeout: 0,
      maxHeaderSize: MAX_HEAD_BYTES,
      connect: (dialOptions, callback) => {
        connection.dials++;
        const socket = dial(dialOptions, (...outcome) => {
          connection.dialing = null;
          if (outcome[0] === null) skipContinue(outcome[1], () => connection.awaitsHead);
          callback(...outcome);
        });
        connection.dialing = dialedBy(socket);
      },
    });
    const connection: Connection = {
      client,
      dialing: null,
      dials: 0,
      awaitsHead: false,
      holder: null,
      index: all.length,
    };
    all.push(connection);
    return connection;
  }

  function destroy(connection: Connection): void {
    connection.holder = null;
    // The last one takes its place: the order of the list means nothing.
    const last = all.pop();
    if (last !== undefined && last !== connection) {
      all[connection.index] = last;
      last.index = connection.index;
    }
    connection.client.destroy(null, noop);
    connection.dialing?.destroy();
    connection.dialing = null;
  }

  const pool: OriginPool = {
    lastUsed: options.monotonic(),
    take(holder) {
      pool.lastUsed = options.monotonic();
      const connection = idle.pop() ?? create();
      connection.holder = holder;
      connection.awaitsHead = true;
      return connection;
    },
    release(connection) {
      connection.holder = null;
      if (idle.length < options.keep) idle.push(connection);
      else destroy(connection);
    },
    drop: destroy,
    check(now) {
      // Backwards, because a holder that ends drops its connection from the list.
      for (let i = all.length - 1; i >= 0; i--) all[i]?.holder?.check(now);
    },
    close() {
      for (const connection of [...all]) connection.holder?.end('aborted');
      idle.length = 0;
      for (const connection of [...all]) destroy(connection);
    },
    inUse: () => all.length - idle.length,
  };
  return pool;
}
