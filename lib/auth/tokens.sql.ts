import { lockForTransaction } from '../db/advisory-locks.sql.ts';
import type { Db } from '../db/database.ts';

/** A signing key as stored; the last three are what a secret box sealed, with `kid` as additional data. */
export interface SigningKeyRow {
  kid: string;
  state: 'current' | 'previous';
  key_id: string;
  nonce: Buffer;
  ciphertext: Buffer;
}

/** Serialises making and rotating signing keys; held to the end of the transaction. */
export function lockSigningKeys(tx: Db): Promise<void> {
  return lockForTransaction(tx, 'signingKeys');
}

/** The signing keys, two at most, private halves still sealed. */
export async function readSigningKeys(db: Db): Promise<SigningKeyRow[]> {
  const result = await db.query<SigningKeyRow>({
    name: 'tokens_read_signing_keys',
    text: 'select kid, state, key_id, nonce, ciphertext from token_signing_keys',
    values: [],
  });
  return result.rows;
}

/** Drops the previous key and makes the current one previous. Under `lockSigningKeys`; an insert follows. */
export async function retireSigningKey(tx: Db): Promise<void> {
  await tx.query({
    name: 'tokens_drop_previous_signing_key',
    text: `delete from token_signing_keys where state = 'previous'`,
    values: [],
  });
  await tx.query({
    name: 'tokens_retire_signing_key',
    text: `update token_signing_keys set state = 'previous' where state = 'current'`,
    values: [],
  });
}

/** Adds the current key. Violates `token_signing_key_one_of_each` when there is one: take the lock and look first. */
export async function insertSigningKey(tx: Db, key: Omit<SigningKeyRow, 'state'>): Promise<void> {
  await tx.query({
    name: 'tokens_insert_signing_key',
    text: `insert into token_signing_keys (kid, state, key_id, nonce, ciphertext)
      values ($1::uuid, 'current', $2::text, $3::bytea, $4::bytea)`,
    values: [key.kid, key.key_id, key.nonce, key.ciphertext],
  });
}

/** Replaces the sealed form of a key, for a new master key; hold `lockSigningKeys`. */
export async function resealSigningKey(tx: Db, key: Omit<SigningKeyRow, 'state'>): Promise<void> {
  await tx.query({
    name: 'tokens_reseal_signing_key',
    text: `update token_signing_keys set key_id = $2::text, nonce = $3::bytea, ciphertext = $4::bytea
      where kid = $1::uuid`,
    values: [key.kid, key.key_id, key.nonce, key.ciphertext],
  });
}

/** The user's token version (0 when it was never raised), and the database's clock in epoch ms. */
export async function readIssueFacts(tx: Db, userId: string): Promise<{ version: number; now_ms: number }> {
  const result = await tx.query<{ version: number; now_ms: number }>({
    name: 'tokens_read_issue_facts',
    text: `select coalesce((select version from user_token_versions where id = $1::uuid), 0) as version,
      floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms`,
    values: [userId],
  });
  return result.rows[0]!;
}

/** Records an issued token; `expiresAt` in epoch ms. */
export async function insertToken(tx: Db, jti: string, userId: string, expiresAt: number): Promise<void> {
  await tx.query({
    name: 'tokens_insert',
    text: `insert into tokens (jti, user_id, expires_at)
      values ($1::uuid, $2::uuid, to_timestamp($3::float8 / 1000))`,
    values: [jti, userId, expiresAt],
  });
}

/**
 * Revokes one token. `unknown`: never issued, or expired and purged. `already`: it was revoked before, nothing changed.
 */
export async function markTokenRevoked(tx: Db, jti: string): Promise<'revoked' | 'already' | 'unknown'> {
  const changed = await tx.query({
    name: 'tokens_revoke',
    text: 'update tokens set revoked_at = clock_timestamp() where jti = $1::uuid and revoked_at is null',
    values: [jti],
  });
  if (changed.rowCount === 1) return 'revoked';
  const found = await tx.query({
    name: 'tokens_find',
    text: 'select jti from tokens where jti = $1::uuid',
    values: [jti],
  });
  return found.rowCount === 1 ? 'already' : 'unknown';
}

/**
 * Forgets tokens that expired over an hour ago, at most 10,000 a call (the sweep comes again); returns how many. They
 * are refused as expired whether or not they were revoked.
 */
export async function purgeExpiredTokens(db: Db): Promise<number> {
  const result = await db.query({
    name: 'tokens_purge_expired',
    text: `delete from tokens where jti in (
      select jti from tokens where expires_at < statement_timestamp() - interval '1 hour'
      order by expires_at limit 10000 for update skip locked)`,
    values: [],
  });
  return result.rowCount ?? 0;
}

/** Raises a user's token version, which revokes every token issued before. Returns the new version. */
export async function raiseUserTokenVersion(tx: Db, userId: string): Promise<number> {
  const result = await tx.query<{ version: number }>({
    name: 'user_token_version_raise',
    text: `insert into user_token_versions as v (id, version) values ($1::uuid, 1)
           on conflict (id) do update set version = v.version + 1
           returning version`,
    values: [userId],
  });
  return result.rows[0]!.version;
}
