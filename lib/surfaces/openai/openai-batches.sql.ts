import type { StateCounts } from '../../batch/batches.sql.ts';
import type { Db } from '../../db/database.ts';
import type { Attribution } from '../../model/batch.ts';
import type { TokenPart } from '../../model/usage-event.ts';

/** A batch of the OpenAI surface as its create makes it. */
export interface NewOpenaiBatch {
  id: string;
  attribution: Attribution;
  endpoint: string;
  inputFileId: string;
  /** The file's object. */
  objectId: string;
  metadata: Readonly<Record<string, string>> | null;
  outputExpiresSeconds: number | null;
}

// Metadata as a JSON string that holds the JSON text: jsonb itself would sort the keys, and refuse a NUL or a lone
// surrogate, which callers may well send.
const INSERT_OPENAI_BATCH = `
  insert into openai_batches (id, owner, attribution, endpoint, input_file_id, object_id, metadata, output_expires_s)
  values ($1::uuid, $2::text, $3::jsonb, $4::text, $5::uuid, $6::uuid, to_jsonb($7::text), $8::int)`;

/** Inserts a batch that waits for its validation. */
export async function insertOpenaiBatch(tx: Db, batch: NewOpenaiBatch): Promise<void> {
  const { attribution, metadata } = batch;
  await tx.query({
    name: 'insert_openai_batch',
    text: INSERT_OPENAI_BATCH,
    values: [
      batch.id,
      attribution.owner,
      JSON.stringify(attribution),
      batch.endpoint,
      batch.inputFileId,
      batch.objectId,
      metadata && JSON.stringify(metadata),
      batch.outputExpiresSeconds,
    ],
  });
}

export type FinalStatus = 'completed' | 'failed' | 'expired' | 'cancelled';

/** A fault as it is stored; see lib/surfaces/openai/validation/faults.ts. */
export interface StoredFault {
  code: string;
  message: string;
  param: string | null;
  line: number | null;
}

/**
 * Token sums that `usage` is made of, as text: they may be larger than a number holds. Parts that do not occur are
 * null.
 */
export type UsageSums = Partial<Record<TokenPart, string | null>>;

/** A batch as its owner sees it. */
export interface OpenaiBatchRow {
  id: string;
  endpoint: string;
  model: string | null;
  errors: StoredFault[] | null;
  input_file_id: string;
  /** JSON text. */
  metadata: string | null;
  output_file_id: string | null;
  error_file_id: string | null;
  created_at: Date;
  expires_at: Date;
  in_progress_at: Date | null;
  /** When the last item became final; null before, and for a batch that never ran. */
  items_done_at: Date | null;
  cancelling_at: Date | null;
  ended_at: Date | null;
  final_status: FinalStatus | null;
  /** Null for a batch that has no items (yet). */
  total_items: number | null;
  counts: StateCounts | null;
  usage: UsageSums | null;
}

const SUMS = `json_build_object(
      'input', sum(e.tokens_input)::text, 'cache_read', sum(e.tokens_cache_read)::text,
      'cache_creation', sum(e.tokens_cache_creation)::text, 'cache_creation_5m', sum(e.tokens_cache_creation_5m)::text,
      'cache_creation_1h', sum(e.tokens_cache_creation_1h)::text, 'output', sum(e.tokens_output)::text,
      'reasoning', sum(e.tokens_reasoning)::text)::jsonb`;

// Counts and sums are frozen when the result files are written; before, they come from the item rows and usage events.
const COLUMNS = `o.id, o.endpoint, o.model, o.errors, o.input_file_id, o.metadata #>> '{}' as metadata, o.output_file_id,
    o.error_file_id, o.created_at, o.expires_at, o.in_progress_at, b.completed_at as items_done_at, o.cancelling_at,
    o.ended_at, o.final_status, b.total_items,
    coalesce(b.final_counts, (
      select json_object_agg(g.state, g.n)
      from (select i.state, count(*) as n from batch_items i where i.batch_id = b.id group by i.state) g
    )) as counts,
    case when o.usage is null and b.id is not null
      then (select ${SUMS} from usage_events e where e.batch_id = b.id) else o.usage end as usage
  from openai_batches o left join batches b on b.id = o.id`;

/** Look-ups name owner and id together: another's batch and one that never was are the same absence. */
export interface OpenaiBatchKey {
  owner: string;
  id: string;
}

const FIND_OPENAI_BATCH = `select ${COLUMNS} where o.id = $1::uuid and o.owner = $2::text`;

/** The batch, or null when its owner has none of this id. */
export async function findOpenaiBatch(db: Db, { owner, id }: OpenaiBatchKey): Promise<OpenaiBatchRow | null> {
  const { rows } = await db.query<OpenaiBatchRow>({
    name: 'find_openai_batch',
    text: FIND_OPENAI_BATCH,
    values: [id, owner],
  });
  return rows[0] ?? null;
}

// Without a cursor it begins above every row: a condition on null would keep it out of the index.
const LIST_OPENAI_BATCHES = `
  select ${COLUMNS}
  where o.owner = $1::text and (o.created_at, o.id) < (
    (select coalesce(max(c.created_at), 'infinity') from openai_batches c where c.id = $2::uuid and c.owner = $1::text),
    coalesce($2::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
  order by o.created_at desc, o.id desc limit $3::int`;

/** At most `limit` batches of an owner, newest first, from below the batch `after`, which is one of theirs. */
export async function listOpenaiBatches(
  db: Db,
  page: { owner: string; after: string | null; limit: number },
): Promise<OpenaiBatchRow[]> {
  const values = [page.owner, page.after, page.limit];
  return (await db.query<OpenaiBatchRow>({ name: 'list_openai_batches', text: LIST_OPENAI_BATCHES, values })).rows;
}

const IS_OPENAI_BATCH = 'select from openai_batches where id = $1::uuid and owner = $2::text';

/** True when the owner has such a batch. */
export async function isOpenaiBatch(db: Db, { owner, id }: OpenaiBatchKey): Promise<boolean> {
  return (await db.query({ name: 'is_openai_batch', text: IS_OPENAI_BATCH, values: [id, owner] })).rowCount === 1;
}

const MARK_CANCELLING = `
  with locked as materialized (
    select id, final_status, in_progress_at is not null as ran
    from openai_batches where id = $1::uuid and owner = $2::text for update
  ), marked as (
    update openai_batches o set cancelling_at = coalesce(o.cancelling_at, clock_timestamp())
    from locked l where o.id = l.id and l.final_status is null
  )
  select final_status, ran from locked`;

/**
 * Marks a batch that is not final, and holds its row until the transaction ends: a validation that would start it waits
 * and then finds the mark. Returns whether it ran and how it had ended; null when the owner has none of this id.
 */
export async function markCancelling(
  tx: Db,
  { owner, id }: OpenaiBatchKey,
): Promise<{ ran: boolean; finalStatus: FinalStatus | null } | null> {
  const { rows } = await tx.query<{ ran: boolean; final_status: FinalStatus | null }>({
    name: 'mark_openai_batch_cancelling',
    text: MARK_CANCELLING,
    values: [id, owner],
  });
  return rows[0] ? { ran: rows[0].ran, finalStatus: rows[0].final_status } : null;
}

// The sums are those that callers saw so far, of a batch whose items are all final.
const FINISH_OPENAI_BATCH = `
  update openai_batches o set ended_at = clock_timestamp(),
    final_status = case when o.cancelling_at is not null then 'cancelled' when $2::boolean then 'expired' else 'completed' end,
    output_file_id = $3::uuid, error_file_id = $4::uuid,
    usage = (select ${SUMS} from usage_events e where e.batch_id = $1::uuid)
  where o.id = $1::uuid and o.in_progress_at is not null and o.ended_at is null`;

/** Ends a batch that ran, in the transaction that has its result files; false when it had ended or was deleted. */
export async function finishOpenaiBatch(
  tx: Db,
  end: { id: string; expired: boolean; outputFileId: string | null; errorFileId: string | null },
): Promise<boolean> {
  const values = [end.id, end.expired, end.outputFileId, end.errorFileId];
  return (await tx.query({ name: 'finish_openai_batch', text: FINISH_OPENAI_BATCH, values })).rowCount === 1;
}

/** The columns of a batch that its result files use. */
export interface ResultFilesRow {
  owner: string;
  custom_ids_id: string;
  output_expires_s: number | null;
}

const READ_FOR_RESULTS = `
  select o.owner, b.custom_ids_id, o.output_expires_s
  from openai_batches o join batches b on b.id = o.id where o.id = $1::uuid and o.ended_at is null`;

/** Null when the batch has ended or was deleted. */
export async function readForResults(db: Db, id: string): Promise<ResultFilesRow | null> {
  const { rows } = await db.query<ResultFilesRow>({
    name: 'read_openai_batch_for_results',
    text: READ_FOR_RESULTS,
    values: [id],
  });
  return rows[0] ?? null;
}

// Its own row in `batches` goes by its own end, which is a little earlier; one without it has nothing more to show.
const DELETE_EXPIRED = `
  delete from openai_batches where id in (
    select id from openai_batches o
    where ended_at < statement_timestamp() - $1::int * interval '1 day'
      or (ended_at is not null and in_progress_at is not null and not exists (select from batches b where b.id = o.id))
    limit 1000 for update skip locked)`;

/** Deletes batches that ended longer ago than the retention, at most 1,000 at a time; returns how many went. */
export async function deleteExpiredOpenaiBatches(db: Db, retentionDays: number): Promise<number> {
  const result = await db.query({
    name: 'delete_expired_openai_batches',
    text: DELETE_EXPIRED,
    values: [retentionDays],
  });
  return result.rowCount ?? 0;
}
