import { z } from 'zod';
import type { Db } from '../db/database.ts';

/**
 * Statements on the direct connection that the owner of a data dir holds for its whole life. The one place with a lock of
 * a session: an embedded Postgres has no pooler before it.
 */

const OWNER_LOCK = '7309034662';

const lockedRow = z.object({ locked: z.boolean() });
const holderRow = z.object({ application_name: z.string() });

/** Takes the owner's lock for the life of the session; false when another session has it. */
export async function tryOwnerLock(session: Db): Promise<boolean> {
  const result = await session.query({
    name: 'data_dir_try_lock',
    text: 'select pg_try_advisory_lock($1::bigint) as locked',
    values: [OWNER_LOCK],
  });
  return lockedRow.parse(result.rows[0]).locked;
}

/** The application name of the session that has the owner's lock; null when it was released in between. */
export async function ownerLockHolder(session: Db): Promise<string | null> {
  const result = await session.query({
    name: 'data_dir_lock_holder',
    text: `select a.application_name
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
      where l.locktype = 'advisory' and l.granted
        and l.classid = ($1::bigint >> 32)::oid and l.objid = ($1::bigint & 4294967295)::oid and l.objsubid = 1
        and l.database = (select oid from pg_database where datname = current_database())`,
    values: [OWNER_LOCK],
  });
  return result.rows[0] === undefined ? null : holderRow.parse(result.rows[0]).application_name;
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
