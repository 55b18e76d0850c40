/**
 * The common end of every statement that makes items final without an upstream answer in hand: cancel, release into a
 * cancelled batch, rescue, expiry. It follows a CTE `updated` (batch_id, idx, claim_no, attempts, error_kind,
 * error_message, finalized_at: null for items that became available again) and takes the instance as $1. The error kind is
 * `cancelled` for cancelled items alone, and is what they are counted by. Usage events
 * are inserted only from the rows that the guarded UPDATE returned, in the same statement.
 */
export const RECORD_UNSENT = `
  events as (
    insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, error_kind, error_message, instance)
    select batch_id, idx, finalized_at, 0, attempts, 0, error_kind, error_message, $1::text
    from updated where finalized_at is not null
  ), freed as (
    delete from limit_concurrency c using updated u where c.batch_id = u.batch_id and c.idx = u.idx
  ), counts as (
    select batch_id, count(*)::int as n, count(*) filter (where error_kind = 'cancelled')::int as cancelled
    from updated where finalized_at is not null group by batch_id
  )`;

/** Counts the batches of `counts` down and completes those that reach zero. */
export const COUNT_DOWN = `
  counted as (
    update batches b set open_items = b.open_items - c.n, cancelled_items = b.cancelled_items + c.cancelled,
      discarded_items = b.discarded_items + c.n - c.cancelled,
      completed_at = case when b.open_items - c.n = 0 then clock_timestamp() else b.completed_at end
    from counts c where b.id = c.batch_id
    returning b.id, b.open_items
  )`;
