import { ADVISORY_LOCKS, tryLockForSession } from '../db/advisory-locks.sql.ts';
import type { Db } from '../db/database.ts';

/**
 * Statements on the direct connection that the owner of a data dir holds for its whole life. An embedded
 * Postgres has no pooler before it, so a lock may belong to the session.
 */

/** Takes the owner's lock for the life of the session; false when another session has it. */
export function tryOwnerLock(session: Db): Promise<boolean> {
  return tryLockForSession(session, ADVISORY_LOCKS.dataDirOwner);
}

/** The application name of the session that has the owner's lock; null when it was released in between. */
export async function ownerLockHolder(session: Db): Promise<string | null> {
  const result = await session.query<{ application_name: string }>({
    name: 'data_dir_lock_holder',
    text: `select a.application_name
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
      where l.locktype = 'advisory' and l.granted
        and l.classid = ($1::bigint >> 32)::oid and l.objid = ($1::bigint & 4294967295)::oid and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())`,
    values: [ADVISORY_LOCKS.dataDirOwner],
  });
  return result.rows[0]?.application_name ?? null;
}

/** Makes the service's database `relay` unless it exists. Call it under the owner's lock, outside a transaction. */
export async function ensureDatabase(session: Db): Promise<void> {
  const result = await session.query({
    name: 'data_dir_database_exists',
    text: `select 1 from pg_database where datname = 'relay'`,
    values: [],
  });
  if (result.rowCount === 0) {
    await session.query({ name: 'data_dir_create_database', text: 'create database relay', values: [] });
  }
}
