import { OPEN_UPLOADS } from '../../batch/submit/uploads.sql.ts';
import type { Db } from '../../db/database.ts';
import type { PayloadKind } from '../../payloads/payload-store.ts';
import { COUNT_DOWN, RECORD_UNSENT } from '../../usage/unsent.sql.ts';

/** Discards the unstarted items of batches whose completion window has closed; gives the batches finished. */
export async function expireItems(db: Db, instance: string): Promise<string[]> {
  const result = await db.query<{ finished: string | null }>({
    name: 'expire_items',
    text: `
      with locked as materialized (
        select b.id from batches b
        where b.completed_at is null and b.status = 'queued' and b.expires_at < clock_timestamp()
          and (exists (select from batch_cursors c where c.batch_id = b.id)
            or exists (select from batch_items i where i.batch_id = b.id and i.not_before is not null))
        order by b.id limit 20 for update of b skip locked
      ), cursor_gone as (
        delete from batch_cursors c using locked l where c.batch_id = l.id returning 1
      ), updated as (
        update batch_items i set state = 'discarded', error = 'batch item: expired', not_before = null,
          finalized_at = clock_timestamp()
        from locked l
        where (select count(*) from cursor_gone) >= 0 and i.batch_id = l.id and i.state = 'available'
        returning i.batch_id, i.idx, i.attempts, i.finalized_at, 'timeout' as error_kind, 'expired' as error_message
      ), ${RECORD_UNSENT}, ${COUNT_DOWN}
      select string_agg(id::text, ';') as finished from counted where open_items = 0`,
    values: [instance],
  });
  const { finished } = result.rows[0]!;
  return finished === null ? [] : finished.split(';');
}

/** Finished batches whose results nobody writes, oldest first; without those in `except`. */
export async function listUncompacted(db: Db, limit: number, except: readonly string[] = []): Promise<string[]> {
  const result = await db.query<{ id: string }>({
    name: 'list_uncompacted',
    text: `
      select id from batches
      where completed_at < clock_timestamp() - interval '5 seconds' and results_id is null and id <> all($2::uuid[])
        and (compacting_until is null or compacting_until < clock_timestamp())
      order by id limit $1::int`,
    values: [limit, except],
  });
  return result.rows.map((row) => row.id);
}

/** Without a sign of life for so long, another replica writes the results. */
export const COMPACTION_LEASE_SECONDS = 30;

/** Takes a finished batch that has no results yet, for half a minute; null for any other, or when somebody has it. */
export async function claimCompaction(
  db: Db,
  batchId: string,
): Promise<{ id: string; surface: string; totalItems: number; finishedSeconds: number } | null> {
  const result = await db.query<{ surface: string; total_items: number; finished_seconds: number }>({
    name: 'claim_compaction',
    text: `
      update batches set compacting_until = clock_timestamp() + $2::int * interval '1 second'
      where id = $1::uuid and completed_at is not null and results_id is null
        and (compacting_until is null or compacting_until < clock_timestamp())
      returning surface, total_items, extract(epoch from clock_timestamp() - completed_at)::float8 as finished_seconds`,
    values: [batchId, COMPACTION_LEASE_SECONDS],
  });
  const row = result.rows[0];
  if (row === undefined) return null;
  const { surface, total_items: totalItems, finished_seconds: finishedSeconds } = row;
  return { id: batchId, surface, totalItems, finishedSeconds };
}

/** Goes on for `seconds` from now; 0 gives the batch back. */
export async function renewCompaction(db: Db, batchId: string, seconds: number): Promise<void> {
  await db.query({
    name: 'renew_compaction',
    text: `
      update batches set compacting_until = clock_timestamp() + $2::int * interval '1 second'
      where id = $1::uuid and results_id is null`,
    values: [batchId, seconds],
  });
}

/**
 * Switches a finished batch to its results document, freezes its counts, and drops its segment references; false when it
 * was beaten.
 */
export async function setResults(db: Db, batchId: string, resultsId: string): Promise<boolean> {
  const result = await db.query<{ done: boolean }>({
    name: 'set_results',
    text: `
      with switched as (
        update batches b set results_id = $2::uuid, final_counts = (
          select json_object_agg(g.state, g.n) from (
            select i.state, count(*) as n from batch_items i where i.batch_id = b.id group by i.state order by i.state
          ) g)
        where id = $1::uuid and completed_at is not null and results_id is null
        returning id
      ), dropped as (
        delete from segment_refs r using switched s where r.batch_id = s.id
      )
      select exists (select from switched) as done`,
    values: [batchId, resultsId],
  });
  return result.rows[0]!.done;
}

/** Of the given object ids, those that something refers to at this moment. */
export async function referencedObjects(db: Db, kind: PayloadKind, ids: readonly string[]): Promise<Set<string>> {
  const text = {
    input: `select input_id as id from batches where input_id = any($1::uuid[])
      union select object_id from files where object_id = any($1::uuid[])
      union select object_id from openai_batches where object_id = any($1::uuid[]) and ended_at is null`,
    custom_ids: 'select custom_ids_id as id from batches where custom_ids_id = any($1::uuid[])',
    segment: 'select segment_id as id from segment_refs where segment_id = any($1::uuid[])',
    result: 'select results_id as id from batches where results_id = any($1::uuid[])',
    index: 'select results_id as id from batches where results_id = any($1::uuid[])',
    output: 'select object_id as id from files where object_id = any($1::uuid[])',
    upload: OPEN_UPLOADS,
  }[kind];
  const result = await db.query<{ id: string }>({ name: `referenced_${kind}`, text, values: [ids] });
  return new Set(result.rows.map((row) => row.id));
}

/**
 * Deletes finished batches older than the retention, one at a time (50,000 items are a second); gives how many went.
 * statement_timestamp, because an index condition cannot hold the volatile clock_timestamp: each look at 50,000 batches of
 * which none was due read all of them, 85 ms.
 */
export async function deleteExpiredBatches(db: Db, retentionDays: number): Promise<number> {
  const result = await db.query<{ n: number }>({
    name: 'delete_expired_batches',
    text: `
      with gone as (
        delete from batches where id in (
          select id from batches where completed_at < statement_timestamp() - $1::int * interval '1 day'
          order by completed_at limit 1 for update skip locked)
        returning id
      ), items as (
        delete from batch_items i using gone g where i.batch_id = g.id
      ), refs as (
        delete from segment_refs r using gone g where r.batch_id = g.id
      )
      select count(*)::int as n from gone`,
    values: [retentionDays],
  });
  return result.rows[0]!.n;
}

/** Forgets idempotency keys older than 24 h. */
export async function purgeIdempotencyKeys(db: Db): Promise<void> {
  await db.query({
    name: 'purge_idempotency_keys',
    text: `delete from idempotency_keys where created_at < statement_timestamp() - interval '24 hours'`,
    values: [],
  });
}

/** Makes the usage partitions of the next weeks, and drops those older than `keepDays` (0 keeps all). */
export async function maintainUsagePartitions(db: Db, keepDays: number): Promise<void> {
  await db.query({ name: 'ensure_usage_partitions', text: 'select ensure_usage_partitions(2)', values: [] });
  if (keepDays > 0) {
    await db.query({
      name: 'drop_usage_partitions',
      text: 'select drop_usage_partitions($1::int)',
      values: [keepDays],
    });
  }
}
