import type { Db } from '../../db/database.ts';

/** The name of this surface in `batches` and all that hangs on it. */
export const ANTHROPIC = 'anthropic';

/** A message batch as its owner sees it. */
export interface MessageBatchRow {
  id: string;
  total_items: number;
  created_at: Date;
  completed_at: Date | null;
  cancelled_at: Date | null;
  /** The object with its results: it has ended. */
  results_id: string | null;
  /** Frozen with the results: items by state, and how many of the discarded ones had expired. */
  final_counts: Partial<Record<'completed' | 'discarded' | 'cancelled' | 'expired', number>> | null;
}

/** Look-ups name owner and id together: another's batch and one that never was are the same absence. */
export interface MessageBatchKey {
  owner: string;
  /** A UUID. */
  id: string;
}

const COLUMNS = 'b.id, b.total_items, b.created_at, b.completed_at, b.cancelled_at, b.results_id, b.final_counts';

const FIND = `
  select ${COLUMNS} from batches b where b.id = $1::uuid and b.owner = $2::text and b.surface = 'anthropic'`;

/** The batch, or null. */
export async function findMessageBatch(db: Db, key: MessageBatchKey): Promise<MessageBatchRow | null> {
  const values = [key.id, key.owner];
  const { rows } = await db.query<MessageBatchRow>({ name: 'find_message_batch', text: FIND, values });
  return rows[0] ?? null;
}

/** The same, locked until the transaction ends: no results come in between. */
export async function lockMessageBatch(tx: Db, key: MessageBatchKey): Promise<MessageBatchRow | null> {
  const values = [key.id, key.owner];
  const { rows } = await tx.query<MessageBatchRow>({
    name: 'lock_message_batch',
    text: `${FIND} for update`,
    values,
  });
  return rows[0] ?? null;
}

/** Behind every id. */
const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff';

const LIST_OLDER = `
  select ${COLUMNS} from batches b
  where b.owner = $1::text and b.surface = 'anthropic' and b.id < $2::uuid
  order by b.id desc limit $3::int`;

const LIST_NEWER = `
  select ${COLUMNS} from batches b
  where b.owner = $1::text and b.surface = 'anthropic' and b.id > $2::uuid
  order by b.id limit $3::int`;

/** At most `limit` batches with ids below `after` (all when null), the last ones first. */
export async function listOlderMessageBatches(
  db: Db,
  { owner, after, limit }: { owner: string; after: string | null; limit: number },
): Promise<MessageBatchRow[]> {
  const values = [owner, after ?? LAST_ID, limit];
  return (await db.query<MessageBatchRow>({ name: 'list_older_message_batches', text: LIST_OLDER, values })).rows;
}

/** At most `limit` batches with ids above `before`, the nearest ones first. */
export async function listNewerMessageBatches(
  db: Db,
  { owner, before, limit }: { owner: string; before: string; limit: number },
): Promise<MessageBatchRow[]> {
  const values = [owner, before, limit];
  return (await db.query<MessageBatchRow>({ name: 'list_newer_message_batches', text: LIST_NEWER, values })).rows;
}

/** The object with the custom ids of a batch; null if the batch does not exist. */
export async function findCustomIds(db: Db, batchId: string): Promise<string | null> {
  const text = "select custom_ids_id from batches where id = $1::uuid and surface = 'anthropic'";
  const { rows } = await db.query<{ custom_ids_id: string | null }>({
    name: 'find_custom_ids',
    text,
    values: [batchId],
  });
  return rows[0]?.custom_ids_id ?? null;
}

// The state alone does not tell expired items from others that failed.
const FREEZE_COUNTS = `
  update batches set final_counts = json_build_object(
    'completed', $3::int, 'discarded', $4::int, 'cancelled', $5::int, 'expired', $6::int)
  where id = $1::uuid and results_id = $2::uuid`;

/** Replaces the counts that `setResults` froze in the same transaction. */
export async function freezeMessageCounts(
  tx: Db,
  batch: { id: string; resultsId: string },
  counts: { completed: number; discarded: number; cancelled: number; expired: number },
): Promise<void> {
  const { completed, discarded, cancelled, expired } = counts;
  const values = [batch.id, batch.resultsId, completed, discarded, cancelled, expired];
  await tx.query({ name: 'freeze_message_counts', text: FREEZE_COUNTS, values });
}

// Usage events, their attribution and the idempotency row stay.
const DELETE_ENDED = `
  with gone as (
    delete from batches
    where id = $1::uuid and owner = $2::text and surface = 'anthropic' and results_id is not null
    returning id, input_id, custom_ids_id, results_id
  ), items as (
    delete from batch_items i using gone g where i.batch_id = g.id
  ), refs as (
    delete from segment_refs r using gone g where r.batch_id = g.id
  )
  select input_id, custom_ids_id, results_id from gone`;

/** The objects that were a deleted batch's own. */
export interface DeletedObjects {
  input_id: string;
  custom_ids_id: string | null;
  results_id: string;
}

/** Deletes a batch that has ended; null if it does not exist or has not ended. */
export async function deleteMessageBatch(db: Db, key: MessageBatchKey): Promise<DeletedObjects | null> {
  const values = [key.id, key.owner];
  const { rows } = await db.query<DeletedObjects>({ name: 'delete_message_batch', text: DELETE_ENDED, values });
  return rows[0] ?? null;
}
