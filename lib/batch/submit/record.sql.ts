import { Undone } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';

/** Where each item's bytes stand in the batch's input object; index is the item's idx. */
export interface ItemSpans {
  count: number;
  offsets: ArrayLike<number> & { join(separator: string): string };
  lengths: ArrayLike<number> & { join(separator: string): string };
}

const INSERT_ITEMS = `
  insert into batch_items (batch_id, idx, input_offset, input_length, input_crc)
  select $1::uuid, n.idx - 1, n.input_offset, n.input_length, n.input_crc
  from unnest($2::bigint[], $3::int[], $4::bigint[])
    with ordinality as n(input_offset, input_length, input_crc, idx)`;

/**
 * Inserts all items of a batch, in one statement of three arrays: idx follows from their order.
 *
 * @internal Exported for its tests.
 */
export async function insertItems(db: Db, batchId: string, spans: ItemSpans, crcs: Uint32Array): Promise<void> {
  const list = (values: { join(separator: string): string }) => `{${values.join(',')}}`;
  await db.query({
    name: 'insert_items',
    text: INSERT_ITEMS,
    values: [batchId, list(spans.offsets), list(spans.lengths), list(crcs)],
  });
}

/** The items of a batch that is made: how many, and what inserts them. */
export interface NewItems {
  count: number;
  insert(tx: Db, batchId: string): Promise<void>;
}

/** Items by the places in the batch's input object, with the CRC32 of each. */
export function itemsAt(spans: ItemSpans, crcs: Uint32Array): NewItems {
  return { count: spans.count, insert: (tx, batchId) => insertItems(tx, batchId, spans, crcs) };
}

const COPY_ITEMS = `
  insert into batch_items (batch_id, idx, input_offset, input_length, input_crc)
  select $1::uuid, i.idx, i.input_offset, i.input_length, i.input_crc
  from batch_items i where i.batch_id = $2::uuid order by i.idx`;

/** The items of an earlier batch on the same input object, all fresh. Undone when that batch was deleted meanwhile. */
export function itemsOf(earlier: { id: string; count: number }): NewItems {
  const { id, count } = earlier;
  return {
    count,
    async insert(tx, batchId) {
      const { rowCount } = await tx.query({ name: 'copy_items', text: COPY_ITEMS, values: [batchId, id] });
      if (rowCount !== count) throw new Undone('the batch whose items were to be copied is gone');
    },
  };
}

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

/** Returns the submit that a key belongs to; null if the key is free. */
export async function findIdempotencyKey(db: Db, name: IdempotencyName): Promise<IdempotencyRow | null> {
  const values = [name.owner, name.surface, name.key];
  const { rows } = await db.query<IdempotencyRow>({ name: 'find_idempotency_key', text: FIND_KEY, values });
  return rows[0] ?? null;
}

/** Forgets idempotency keys older than 24 h. */
export async function purgeIdempotencyKeys(db: Db): Promise<void> {
  await db.query({
    name: 'purge_idempotency_keys',
    text: `delete from idempotency_keys where created_at < statement_timestamp() - interval '24 hours'`,
    values: [],
  });
}
