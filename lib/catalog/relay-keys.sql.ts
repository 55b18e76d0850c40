import type { Db } from '../db/database.ts';

/** The columns of a relay key besides its document. */
export interface RelayKeyRow {
  id: string;
  hash: string;
  prefix: string;
  previous_hash: string | null;
  grace_until: Date | null;
  revoked_at: Date | null;
}

const COLUMNS = 'id, hash, prefix, previous_hash, grace_until, revoked_at';

/** Stores the hashes of new keys. A hash that another key has breaks `relay_key_hash_unique`. */
export async function insertRelayKeys(
  tx: Db,
  keys: readonly { id: string; hash: string; prefix: string; revoked: boolean }[],
): Promise<void> {
  await tx.query({
    name: 'relay_keys_insert',
    text: `insert into relay_keys (id, hash, prefix, revoked_at)
           select id, hash, prefix, case when revoked then clock_timestamp() end
           from unnest($1::uuid[], $2::text[], $3::text[], $4::boolean[]) as k (id, hash, prefix, revoked)`,
    values: [keys.map((k) => k.id), keys.map((k) => k.hash), keys.map((k) => k.prefix), keys.map((k) => k.revoked)],
  });
}

/** Sets the new value of a key that takes its plaintext from the environment; the old one stops at once. */
export async function replaceRelayKeys(
  tx: Db,
  keys: readonly { id: string; hash: string; prefix: string }[],
): Promise<void> {
  await tx.query({
    name: 'relay_keys_replace',
    text: `update relay_keys as k
           set previous_hash = k.hash, grace_until = clock_timestamp(), hash = n.hash, prefix = n.prefix
           from unnest($1::uuid[], $2::text[], $3::text[]) as n (id, hash, prefix)
           where k.id = n.id`,
    values: [keys.map((k) => k.id), keys.map((k) => k.hash), keys.map((k) => k.prefix)],
  });
}

/**
 * Sets a new value of a key; the old one authenticates for `graceSeconds` more (0: no longer). A revoked key is left alone:
 * null, as for an unknown id.
 */
export async function rotateRelayKey(
  tx: Db,
  id: string,
  next: { hash: string; prefix: string; graceSeconds: number },
): Promise<RelayKeyRow | null> {
  const result = await tx.query<RelayKeyRow>({
    name: 'relay_key_rotate',
    text: `update relay_keys
           set previous_hash = hash, grace_until = clock_timestamp() + make_interval(secs => $4::float8),
               hash = $2::text, prefix = $3::text
           where id = $1::uuid and revoked_at is null
           returning ${COLUMNS}`,
    values: [id, next.hash, next.prefix, next.graceSeconds],
  });
  return result.rows[0] ?? null;
}

/**
 * Revokes a key for good; a second time changes nothing. Null for an unknown id. `changed` is false when it already
 * was.
 */
export async function revokeRelayKey(tx: Db, id: string): Promise<{ changed: boolean } | null> {
  const result = await tx.query<{ changed: boolean }>({
    name: 'relay_key_revoke',
    text: `with revoked as (
             update relay_keys set revoked_at = clock_timestamp() where id = $1::uuid and revoked_at is null returning id
           )
           select exists (select from revoked) as changed from relay_keys where id = $1::uuid`,
    values: [id],
  });
  return result.rows[0] ?? null;
}

/** The stored row of one key, or null. */
export async function readRelayKey(db: Db, id: string): Promise<RelayKeyRow | null> {
  const result = await db.query<RelayKeyRow>({
    name: 'relay_key_read',
    text: `select ${COLUMNS} from relay_keys where id = $1::uuid`,
    values: [id],
  });
  return result.rows[0] ?? null;
}
