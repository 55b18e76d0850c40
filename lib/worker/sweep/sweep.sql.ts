import type { Db } from '../../db/database.ts';

import { COUNT_DOWN, RECORD_UNSENT } from '../../usage/unsent.sql.ts';

/** Discards the unstarted items of batches whose completion window has closed; returns the batches finished. */
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

/**
 * Deletes finished batches older than the retention, one at a time (50,000 items are a second); returns how many went.
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
