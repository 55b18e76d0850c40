import type { Db } from './database.ts';

/**
 * Every advisory lock with a fixed number. The numbers are arbitrary, but they must differ and must never change: during
 * a rolling upgrade an older release has to meet the same lock.
 *
 * Locks with a computed number are those of an instance (`lib/db/instance-lock.ts`, 64 bits of a SHA-256), of the submits
 * of an owner (`lockName`, below) and of the usage partitions (migration 0006). They may meet one of these by
 * chance; then two pieces of work wait for each other, and nothing breaks.
 *
 * `signingKeys` had the number of `dataDirOwner` once. The owner holds its lock for life. Only an accident kept the first token of
 * an embedded server from waiting for ever: the owner is connected to the database `postgres`, and a lock belongs to its
 * database. `dataDirOwner` keeps the number, because a new release meets a running Postgres whose owner is an old one.
 * While replicas of both releases run, their locks on signing keys do not exclude each other. The unique constraint
 * `token_signing_key_one_of_each` still does: the second transaction fails with 23505 and leaves nothing behind, and
 * the caller's next attempt reads the key that the first one made.
 */
export const ADVISORY_LOCKS = {
  /** One writer of the catalogue at a time. */
  catalog: '7235601',
  /** One writer of anything that is sealed with the master key at a time. */
  masterKey: '7235602',
  /** One run of migrations at a time. */
  migrations: '7309034661',
  /** One server on a data dir: held by a session on the direct connection for the server's life. */
  dataDirOwner: '7309034662',
  /** One maker or rotator of signing keys at a time. */
  signingKeys: '7309034663',
  /** One replica at a time takes a batch of the OpenAI surface for its validation. */
  validationTurns: '7309034664',
} as const;

export type AdvisoryLock = keyof typeof ADVISORY_LOCKS;

/** Waits for a lock and holds it until the transaction ends. */
export async function lockForTransaction(tx: Db, lock: AdvisoryLock): Promise<void> {
  await tx.query({
    name: 'advisory_lock',
    text: 'select pg_advisory_xact_lock($1::bigint)',
    values: [ADVISORY_LOCKS[lock]],
  });
}

/** The same for a lock that has a name instead of a number. */
export async function lockName(tx: Db, name: string): Promise<void> {
  await tx.query({
    name: 'advisory_lock_name',
    text: 'select pg_advisory_xact_lock(hashtextextended($1::text, 0))',
    values: [name],
  });
}

/**
 * Takes a lock for the life of the session; false when another session has it. Behind a transaction-mode pooler the
 * lock would stay on a connection of somebody else: only for a client of its own on a direct DSN.
 * `test/unit/project/session-state.test.ts` lists the callers.
 */
export async function tryLockForSession(session: Db, key: string): Promise<boolean> {
  const { rows } = await session.query<{ locked: boolean }>({
    name: 'try_advisory_lock',
    text: 'select pg_try_advisory_lock($1::bigint) as locked',
    values: [key],
  });
  return rows[0]!.locked;
}
