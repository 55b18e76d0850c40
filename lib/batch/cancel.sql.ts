import type { Db } from '../db/database.ts';
import { RECORD_UNSENT } from '../usage/unsent.sql.ts';

/**
 * Cancels a batch of this owner. Sets Status, removes the claim cursor (so that no fresh item can be claimed any more),
 * moves available items to `cancelled` with their usage events, and completes the batch when none runs. All of that in
 * one statement. It runs in a transaction that locks the batch before: a statement sees items as they were when it began,
 * and a release may commit while it waits for the lock. Idempotent. Returns false if the batch does not exist.
 */
export async function cancelBatchRow(
  tx: Db,
  batch: { id: string; owner: string; surface: string; instance: string },
): Promise<boolean> {
  const locked = await tx.query({
    name: 'lock_batch',
    text: 'select id from batches where id = $1::uuid and owner = $2::text and surface = $3::text for update',
    values: [batch.id, batch.owner, batch.surface],
  });
  if (locked.rows.length === 0) return false;
  await tx.query({
    name: 'cancel_batch',
    text: `
      with locked as materialized (
        select id from batches where id = $2::uuid
      ), cursor_gone as (
        delete from batch_cursors c using locked l where c.batch_id = l.id returning 1
      ), updated as (
        update batch_items i set state = 'cancelled', not_before = null, finalized_at = clock_timestamp()
        from locked l
        where (select count(*) from cursor_gone) >= 0 and i.batch_id = l.id and i.state = 'available'
        returning i.batch_id, i.idx, i.attempts, i.finalized_at, 'cancelled' as error_kind, null::text as error_message
      ), ${RECORD_UNSENT}, marked as (
        update batches b set status = 'cancelled', cancelled_at = coalesce(b.cancelled_at, clock_timestamp()),
          open_items = b.open_items - coalesce((select n from counts), 0),
          cancelled_items = b.cancelled_items + coalesce((select n from counts), 0),
          completed_at = case when b.open_items - coalesce((select n from counts), 0) = 0
            then coalesce(b.completed_at, clock_timestamp()) end
        from locked l where b.id = l.id
        returning b.id
      )
      select count(*) from marked`,
    values: [batch.instance, batch.id],
  });
  return true;
}
