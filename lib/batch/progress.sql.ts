import type { Db } from '../db/database.ts';
import type { BatchStatus, WaitReason } from '../model/batch.ts';
import type { StateCounts } from './batches.sql.ts';

/** Released items that wait for the same reason; `reason` null: their pause is over, and they need a slot. */
export interface WaitRow {
  reason: WaitReason | null;
  items: number;
  /** Of the item that was released last. */
  text: string | null;
  host_key: string | null;
  /** RFC 3339: since when the first of them waits for it, and when the next of them may run. */
  since: string | null;
  next_try_at: string | null;
}

/** What the progress of a batch is made of, all of one snapshot. */
export interface ProgressRow {
  surface: string;
  /** Null for a batch of the OpenAI surface that has no items (yet). */
  status: BatchStatus | null;
  /** It was cancelled; its running items may not have ended yet. */
  cancelled: boolean;
  total_items: number;
  open_items: number;
  completed_items: number;
  discarded_items: number;
  cancelled_items: number;
  /** As counted from the item rows; null when the three figures above add up. */
  counts: StateCounts | null;
  /** Items not claimed yet. */
  fresh: number;
  created_at: Date;
  started_at: Date | null;
  completed_at: Date | null;
  expires_at: Date | null;
  results_id: string | null;
  ended_at: Date | null;
  final_status: string | null;
  waits: WaitRow[] | null;
  /** The database's clock. */
  now: Date;
  /** Workers with slots whose lease stands, and how many of them can write nothing. */
  workers: number;
  blocked: number;
  /** Since when the last of them is blocked. */
  blocked_since: Date | null;
  /** The last sign of a worker with slots, and whether that was an invocation on Lambda. */
  last_worker_at: Date | null;
  last_was_invocation: boolean | null;
  passed_over: boolean;
}

// A batch of the OpenAI surface has no row in `batches` before its validation has passed. One that ran and has none any more is
// being deleted. Released items are found by their own index. statement_timestamp, as in every other look at `not_before`.
const READ_PROGRESS = `
  with live as materialized (
    select blocked_since, passed_over from workers
    where beat_at > clock_timestamp() - $4::int * interval '1 second' and coalesce(slots, 1) > 0
  ), last as (
    select invocation, at from (
      select invocation, beat_at as at from workers where coalesce(slots, 1) > 0
      union all select invocation, ended_at from worker_ends
    ) seen order by at desc limit 1
  ), waits as materialized (
    select case when i.not_before > statement_timestamp() then coalesce(i.wait_reason, 'retry_pause') end as reason,
      i.wait_text, i.wait_host_key, count(*)::int as items, min(i.not_before) as next, max(i.not_before) as latest,
      min(case when i.not_before > statement_timestamp() then i.waits_since else i.not_before end) as since
    from batch_items i where i.batch_id = $1::uuid and i.not_before is not null
    group by 1, 2, 3
  )
  select coalesce(b.surface, 'openai') as surface, b.status,
    coalesce(b.status = 'cancelled', false) or o.cancelling_at is not null as cancelled,
    coalesce(b.total_items, 0) as total_items, coalesce(b.open_items, 0) as open_items,
    coalesce(b.completed_items, 0) as completed_items, coalesce(b.discarded_items, 0) as discarded_items,
    coalesce(b.cancelled_items, 0) as cancelled_items,
    case when b.completed_items + b.discarded_items + b.cancelled_items <> b.total_items - b.open_items
      then coalesce(b.final_counts, (
        select json_object_agg(g.state, g.n)
        from (select i.state, count(*) as n from batch_items i where i.batch_id = b.id group by i.state) g
      )) end as counts,
    coalesce(c.total_items - c.next_idx, 0) as fresh,
    coalesce(b.created_at, o.created_at) as created_at,
    (select i.started_at from batch_items i where i.batch_id = b.id and i.idx = 0) as started_at,
    b.completed_at, coalesce(o.expires_at, b.expires_at) as expires_at, b.results_id, o.ended_at, o.final_status,
    (select json_agg(json_build_object('reason', g.reason, 'items', g.items, 'text', g.text, 'host_key', g.host_key,
        'since', g.since, 'next_try_at', g.next) order by g.reason)
      from (select reason, sum(items)::int as items, min(since) as since, min(next) as next,
          (array_agg(wait_text order by latest desc))[1] as text, (array_agg(wait_host_key order by latest desc))[1] as host_key
        from waits group by reason) g) as waits,
    clock_timestamp() as now,
    (select count(*)::int from live) as workers,
    (select count(blocked_since)::int from live) as blocked,
    (select max(blocked_since) from live) as blocked_since,
    (select at from last) as last_worker_at,
    (select invocation from last) as last_was_invocation,
    exists (select from live where $1::uuid = any(passed_over)) as passed_over
  from (select $1::uuid as id) k
  left join batches b on b.id = k.id
  left join openai_batches o on o.id = k.id
  left join batch_cursors c on c.batch_id = k.id
  where ($2::text is null or coalesce(b.owner, o.owner) = $2::text)
    and ($3::text is null or coalesce(b.surface, 'openai') = $3::text)
    and (b.id is not null or o.in_progress_at is null and o.id is not null)`;

/** One batch of any surface; `owner` null reads anybody's, `surface` null a batch of any. Null when no batch fits. */
export async function readProgress(
  db: Db,
  { id, owner, surface }: { id: string; owner: string | null; surface: string | null },
  leaseSeconds: number,
): Promise<ProgressRow | null> {
  const { rows } = await db.query<ProgressRow>({
    name: 'read_progress',
    text: READ_PROGRESS,
    values: [id, owner, surface, leaseSeconds],
  });
  return rows[0] ?? null;
}
