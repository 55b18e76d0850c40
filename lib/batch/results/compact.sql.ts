import type { Db } from '../../db/database.ts';

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

/** Renews the claim for `seconds` from now; 0 releases the batch. */
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
