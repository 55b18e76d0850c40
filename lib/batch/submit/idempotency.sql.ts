import type { Db } from '../../db/database.ts';

/** The name of a submit: unique for 24 h by owner, surface and the caller's key. */
export interface IdempotencyName {
  owner: string;
  surface: string;
  key: string;
}

export interface IdempotencyRow {
  body_sha256: Buffer;
  batch_id: string;
}

// A second submit of the same key waits here until the first one's transaction ends: then it meets its row, or, after a
// rollback, takes the key itself. A row older than 24 h is taken over.
const CLAIM_KEY = `
  insert into idempotency_keys as k (owner, surface, key, body_sha256, batch_id)
  values ($1::text, $2::text, $3::text, $4::bytea, $5::uuid)
  on conflict (owner, surface, key) do update
    set body_sha256 = excluded.body_sha256, batch_id = excluded.batch_id, created_at = clock_timestamp()
    where k.created_at <= clock_timestamp() - interval '24 hours'
  returning batch_id`;

/** Takes the key for this batch; false when another submit has it. Runs first in the submit's transaction. */
export async function claimIdempotencyKey(db: Db, name: IdempotencyName, row: IdempotencyRow): Promise<boolean> {
  const values = [name.owner, name.surface, name.key, row.body_sha256, row.batch_id];
  return ((await db.query({ name: 'claim_idempotency_key', text: CLAIM_KEY, values })).rowCount ?? 0) > 0;
}

const FIND_KEY = `
  select body_sha256, batch_id from idempotency_keys
  where owner = $1::text and surface = $2::text and key = $3::text
    and created_at > clock_timestamp() - interval '24 hours'`;

/** What a key stands for, or null when it is free. */
export async function findIdempotencyKey(db: Db, name: IdempotencyName): Promise<IdempotencyRow | null> {
  const values = [name.owner, name.surface, name.key];
  const { rows } = await db.query<IdempotencyRow>({ name: 'find_idempotency_key', text: FIND_KEY, values });
  return rows[0] ?? null;
}
