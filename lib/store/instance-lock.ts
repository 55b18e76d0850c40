import { createHash } from 'node:crypto';
import pg from 'pg';
import { sleep } from '../clock.ts';
import { reasonOf } from '../errors.ts';
import type { Log } from '../log.ts';

/** The former process of this instance may still be dying: its connection is closed within moments. */
const PATIENCE_MS = 3000;

export interface InstanceLock {
  /** False: another live process runs under this instance id. */
  held: boolean;
  release(): Promise<void>;
}

/**
 * Makes sure that an instance id belongs to one process: an instance that starts again takes its former workers' items
 * back at once, which must never hit a live one (two servers in one folder share the id file). The lock lives as long as
 * its direct connection. Rejects when Postgres cannot be reached.
 */
export async function lockInstance(directDsn: string, instance: string, log: Log): Promise<InstanceLock> {
  const client = new pg.Client({
    connectionString: directDsn,
    application_name: 'relay-batch instance',
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  });
  client.on('error', (error) => log.debug({ err: reasonOf(error) }, 'instance lock connection lost'));
  await client.connect();
  const release = async () => {
    await client.end().catch(() => {});
  };
  try {
    const key = createHash('sha256').update(`relay-batch instance ${instance}`).digest().readBigInt64BE().toString();
    const deadline = performance.now() + PATIENCE_MS;
    for (;;) {
      const result = await client.query<{ held: boolean }>('select pg_try_advisory_lock($1::bigint) as held', [key]);
      const held = result.rows[0]!.held;
      if (held) return { held, release };
      if (performance.now() > deadline) {
        await release();
        return { held, release: async () => {} };
      }
      await sleep(100);
    }
  } catch (error) {
    await release();
    throw error;
  }
}
