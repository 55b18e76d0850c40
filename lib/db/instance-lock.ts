import { createHash } from 'node:crypto';
import pg from 'pg';
import { sleep } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import { tryLockForSession } from './advisory-locks.sql.ts';
import { sessionOf } from './database.ts';

/** The former process of this instance may still be dying: its connection is closed within moments. */
const PATIENCE_MS = 3000;
/** Pauses between two tries to take a lost lock again. */
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 5000;

export interface InstanceLock {
  /** False: another live process runs under this instance id. */
  held: boolean;
  release(): Promise<void>;
}

/**
 * Makes sure that an instance id belongs to one process. An instance that starts again takes its former workers' items
 * back at once, which must never hit a live one (two servers in one folder share the id file). The lock lives as long as
 * its direct connection; when Postgres restarts it is taken again, with back-off. Rejects when Postgres cannot be reached
 * at first.
 */
export async function lockInstance(directDsn: string, instance: string, log: Log): Promise<InstanceLock> {
  const key = createHash('sha256').update(`relay-batch instance ${instance}`).digest().readBigInt64BE().toString();
  const released = new AbortController();
  let client = await holdLock(directDsn, key, log);
  if (client === null) return { held: false, release: async () => {} };

  const takeAgain = async (): Promise<pg.Client> => {
    const taken = await holdLock(directDsn, key, log);
    if (taken === null) throw new Error('another live process holds the instance id');
    return taken;
  };
  const keep = async (first: pg.Client): Promise<void> => {
    for (let holder = first; ; ) {
      await closed(holder, released.signal);
      await sleep(RETRY_MIN_MS, released.signal);
      const taken = await retryUntil(takeAgain, {
        min: RETRY_MIN_MS,
        max: RETRY_MAX_MS,
        signal: released.signal,
        onFirst: (error) => log.warn({ err: reasonOf(error) }, 'instance lock lost, trying to take it again'),
      });
      if (taken.aborted) return;
      client = holder = taken.value;
      if (released.signal.aborted) return;
    }
  };
  const kept = keep(client);
  return {
    held: true,
    async release() {
      released.abort();
      await client?.end().catch(() => {});
      await kept;
      await client?.end().catch(() => {});
    },
  };
}

/** A connection that holds the lock; null when another process has it and keeps it. */
async function holdLock(dsn: string, key: string, log: Log): Promise<pg.Client | null> {
  const client = new pg.Client({
    connectionString: dsn,
    application_name: 'relay-batch instance',
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  });
  client.on('error', (error) => log.debug({ err: reasonOf(error) }, 'instance lock connection lost'));
  try {
    await client.connect();
    const session = sessionOf(client);
    const deadline = performance.now() + PATIENCE_MS;
    for (;;) {
      if (await tryLockForSession(session, key)) return client;
      if (performance.now() > deadline) break;
      await sleep(100);
    }
  } catch (error) {
    await client.end().catch(() => {});
    throw error;
  }
  await client.end().catch(() => {});
  return null;
}

function closed(client: pg.Client, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    client.once('end', () => resolve());
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
}
