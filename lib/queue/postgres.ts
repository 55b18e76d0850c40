import pg from 'pg';
import { sleep } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import { type Db, sessionOf } from '../db/database.ts';
import { CHANNELS, listenToAll, notifyWake } from './postgres.sql.ts';
import type { Wake, WakeQueue } from './queue.ts';

const PROOF_EVERY_MS = 60_000;
const PROOF_WITHIN_MS = 10_000;
/** Pauses between two tries to connect. */
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 5000;

/** Wake-ups by NOTIFY. One connection of the pool for a moment, never inside a group commit. */
export function createPostgresQueue(db: Db): WakeQueue {
  return {
    send: async (wake) => {
      await notifyWake(db, wake.kind === 'cancel' ? `cancel:${wake.batchId}` : wake.kind);
    },
  };
}

export interface ListenerOptions {
  /** A direct DSN: LISTEN does not survive a transaction-mode pooler. */
  dsn: string;
  log: Log;
  onWake(wake: Wake): void;
  /** The connection is new: notifications may have been missed, so everything is looked at again. */
  onReconnect(): void;
  /** Another replica reset a breaker. */
  onBreakers(): void;
}

export interface Listener {
  /** True while the connection stands. */
  connected(): boolean;
  stop(): Promise<void>;
}

/**
 * Listens for wake-ups on a connection of its own. A connection that a firewall dropped without a word would stay silent
 * for ever, so it proves itself every 60 s by a NOTIFY to itself. Without the echo it is closed and made anew. Reconnects
 * with back-off up to 5 s until stopped.
 */
export function createListener(options: ListenerOptions): Listener {
  const stopping = new AbortController();
  let current: pg.Client | null = null;
  let connected = false;

  const receive = (message: pg.Notification) => {
    const payload = message.payload ?? '';
    if (message.channel === CHANNELS.catalog) options.onWake({ kind: 'catalog' });
    else if (message.channel === CHANNELS.breakers) options.onBreakers();
    else if (payload.startsWith('cancel:')) options.onWake({ kind: 'cancel', batchId: payload.slice(7) });
    else if (payload === 'work') options.onWake({ kind: 'work' });
  };

  /** Connects and listens; returns what waits until that connection is lost. */
  const open = async (): Promise<() => Promise<void>> => {
    await current?.end().catch(() => {});
    const client = new pg.Client({
      connectionString: options.dsn,
      application_name: 'relay-batch listen',
      connectionTimeoutMillis: 10_000,
      keepAlive: true,
    });
    current = client;
    const lost = new Promise<void>((resolve) => {
      client.on('error', () => resolve());
      client.on('end', () => resolve());
      stopping.signal.addEventListener('abort', () => resolve(), { once: true });
    });
    await client.connect();
    client.on('notification', receive);
    const session = sessionOf(client);
    await listenToAll(session);
    connected = true;
    options.onReconnect();
    let alive = true;
    void lost.then(() => (alive = false));
    return async () => {
      while (alive) {
        await Promise.race([lost, sleep(PROOF_EVERY_MS, stopping.signal)]);
        if (alive && !stopping.signal.aborted && !(await provesItself(client, session, lost))) break;
      }
    };
  };

  const run = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      const opened = await retryUntil(open, {
        min: RETRY_MIN_MS,
        max: RETRY_MAX_MS,
        signal: stopping.signal,
        onFirst: (error) => options.log.warn({ err: reasonOf(error) }, 'listen connection failed, trying again'),
      });
      if (opened.aborted) break;
      await opened.value();
      connected = false;
      if (!stopping.signal.aborted) options.log.warn('listen connection lost, connecting again');
      await sleep(RETRY_MIN_MS, stopping.signal);
    }
    await current?.end().catch(() => {});
  };

  const done = run();
  return {
    connected: () => connected,
    async stop() {
      stopping.abort();
      await current?.end().catch(() => {});
      await done;
    },
  };
}

async function provesItself(client: pg.Client, session: Db, lost: Promise<void>): Promise<boolean> {
  const proof = `proof:${process.pid}:${Math.random()}`;
  let timer: NodeJS.Timeout | undefined;
  const echoed = new Promise<boolean>((resolve) => {
    const listen = (message: pg.Notification) => {
      if (message.payload !== proof) return;
      client.off('notification', listen);
      resolve(true);
    };
    client.on('notification', listen);
    void lost.then(() => resolve(false));
    timer = setTimeout(() => resolve(false), PROOF_WITHIN_MS);
  });
  notifyWake(session, proof).catch(() => {});
  const alive = await echoed;
  clearTimeout(timer);
  return alive;
}
