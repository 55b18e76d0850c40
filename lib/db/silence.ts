import type pg from 'pg';
import { socketOf } from '../runtime/sockets.ts';
import { isSilence } from './errors.ts';

/** A day: for statements that may take as long as they need. */
export const NO_LIMIT_MS = 86_400_000;
/** No statement of the service comes near it; a connection that is silent for so long is not coming back. */
export const STATEMENT_LIMIT_MS = 60_000;
/** The same for what a busy worker sends all the time, some milliseconds each: it is the first to notice. */
export const WORKER_LIMIT_MS = 15_000;

/**
 * Connections that carry nothing any more without having been closed: a firewall forgot them, or the other host has
 * stopped. TCP would notice after a quarter of an hour. A statement that got no answer in time is the sign. Every
 * connection of the pool that has been just as silent since then is closed. The next statement gets a new one, and
 * those that wait on the others fail and are tried again.
 */
export interface SilenceWatch {
  /** Looks at a failure of something that began at `since` (monotonic ms), and closes what is silent if it was silence. */
  suspect(error: unknown, since: number): void;
  /** While `client` runs a statement that may take long, its silence means nothing. */
  excuse(client: pg.PoolClient, excused: boolean): void;
}

/** Watches the connections of a pool; call it before the first one is made. */
export function watchSilence(pool: pg.Pool): SilenceWatch {
  const heardAt = new Map<pg.PoolClient, number>();
  const excusedClients = new Set<pg.PoolClient>();
  pool.on('connect', (client) => {
    heardAt.set(client, performance.now());
    socketOf(client).on('data', () => heardAt.set(client, performance.now()));
  });
  pool.on('remove', (client) => heardAt.delete(client));
  return {
    suspect(error, since) {
      if (!isSilence(error)) return;
      for (const [client, at] of heardAt) {
        if (at < since && !excusedClients.has(client)) socketOf(client).destroy();
      }
    },
    excuse(client, excused) {
      if (excused) excusedClients.add(client);
      else excusedClients.delete(client);
    },
  };
}
