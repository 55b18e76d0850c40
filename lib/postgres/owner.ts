import pg from 'pg';
import { sleep } from '../base/clock.ts';
import { ConfigError } from '../base/errors.ts';
import { sessionOf } from '../db/database.ts';
import { CANNOT_CONNECT_NOW, INVALID_PASSWORD, sqlState } from '../db/errors.ts';
import { ensureDatabase, ownerLockHolder, tryOwnerLock } from './owner.sql.ts';
import { isAlive } from './postmaster.ts';

const CONNECT_TIMEOUT_MS = 3_000;
/** The time that a lock may outlive its killed owner: until Postgres sees the closed connection, normally a few ms. */
const STALE_LOCK_MS = 20_000;

/** The state of the server that a connection attempt found. */
export type Attempt =
  | { kind: 'open'; client: pg.Client }
  /** It runs, and will accept connections later: recovery after a crash, or a shutdown. */
  | { kind: 'starting' }
  /** Nothing listens. */
  | { kind: 'absent' }
  /** Something listens and does not answer. */
  | { kind: 'silent' };

/** Opens the owner's connection. Throws what Postgres itself refuses; a wrong password as ConfigError. */
export async function connectOwner(dsn: string): Promise<Attempt> {
  const client = new pg.Client({
    connectionString: dsn,
    application_name: `relay-batch owner pid ${process.pid}`,
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    keepAlive: true,
  });
  client.on('error', () => {}); // 'end' follows; without a listener it would end the process
  try {
    await client.connect();
    return { kind: 'open', client };
  } catch (error) {
    await client.end().catch(() => {});
    // Finer than the class `away` of lib/db/errors.ts: what the start does next differs for each.
    const code = (error as NodeJS.ErrnoException).code;
    if (code === CANNOT_CONNECT_NOW) return { kind: 'starting' };
    if (code === 'ENOENT' || code === 'ECONNREFUSED' || code === 'ECONNRESET') return { kind: 'absent' };
    if (code === INVALID_PASSWORD) {
      throw new ConfigError('the file postgres-password does not fit the Postgres of this data dir', { cause: error });
    }
    if (sqlState(error) === undefined) return { kind: 'silent' };
    throw error;
  }
}

/**
 * Makes this process the owner of the data dir for as long as `client` lives, makes sure that the service's database
 * exists, and returns true. Throws ConfigError `data dir in use by pid N` if another server is the owner.
 */
export async function becomeOwner(client: pg.Client): Promise<true> {
  const session = sessionOf(client);
  const deadline = performance.now() + STALE_LOCK_MS;
  while (!(await tryOwnerLock(session))) {
    const holder = await ownerLockHolder(session);
    const pid = Number(/ pid (\d+)$/.exec(holder ?? '')?.[1]);
    const killed = holder === null || pid === process.pid || !isAlive(pid);
    if (!killed || performance.now() > deadline) throw new ConfigError(`data dir in use by pid ${pid}`);
    await sleep(50);
  }
  await ensureDatabase(session);
  return true;
}
