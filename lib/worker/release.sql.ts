import { int4, plainArray, sparseArray, sparseTextArray } from '../db/arrays.ts';
import type { Db } from '../db/database.ts';
import { WORKER_LIMIT_MS } from '../db/silence.ts';
import type { Wait } from '../model/batch.ts';
import { COUNT_DOWN, RECORD_UNSENT } from '../usage/unsent.sql.ts';

/** An upstream may name any moment in Retry-After; beyond this nobody waits, and Postgres' intervals end somewhere. */
const MAX_DELAY_MS = 30 * 86_400_000;

/** An item that goes back to `available`: after a stop, an unreadable input, an open breaker, a retry. */
export interface ReleaseRow {
  batchId: string;
  idx: number;
  claimNo: number;
  /** Milliseconds from now, by the database's clock, until it may run again; 0 for at once. */
  delayMs: number;
  /** Upstream calls, rounds and milliseconds of waiting for breakers so far. */
  attempts: number;
  rounds: number;
  waitedMs: number;
  /** True when its input could not be read: counted, and the first such moment is kept. */
  loadFailed: boolean;
  failedKey: string | null;
  /** The first time that it is more than the item's is the time since which the item fails. */
  failedRounds: number;
  /** Null: it may run at once. */
  wait: Wait | null;
}

/**
 * Releases items that are still this worker's. In a cancelled batch they become `cancelled` with their usage event.
 * Returns the batches that this statement finished.
 */
export async function releaseItems(
  db: Db,
  workerId: string,
  instance: string,
  rows: readonly ReleaseRow[],
): Promise<{ finished: string[] }> {
  const result = await db.query<{ finished: string | null }>({
    name: 'release_items',
    withinMs: WORKER_LIMIT_MS,
    text: `
      with input as (
        select * from unnest($3::uuid[], $4::int[], $5::int[], $6::float8[], $7::int[], $8::int[], $9::int[], $10::bool[], $11::text[],
          $12::int[], $13::wait_reason[], $14::text[], $15::text[])
          as t(batch_id, idx, claim_no, delay_ms, attempts, rounds, waited_ms, load_failed, failed_key, failed_rounds,
            wait_reason, wait_text, wait_host_key)
      ), locked as materialized (
        select id, status from batches where id in (select batch_id from input) order by id for update
      ), updated as (
        update batch_items i set
          state = case when l.status = 'cancelled' then 'cancelled' else 'available' end::item_state,
          not_before = case when l.status = 'cancelled' then null
            else clock_timestamp() + n.delay_ms * interval '1 millisecond' end,
          finalized_at = case when l.status = 'cancelled' then clock_timestamp() end,
          worker_id = null, attempts = n.attempts, rounds = n.rounds, waited_ms = n.waited_ms,
          failed_key = n.failed_key, failed_rounds = n.failed_rounds,
          failing_since = case when n.failed_rounds > 0 then coalesce(i.failing_since, clock_timestamp()) end,
          load_failures = case when n.load_failed then i.load_failures + 1 else 0 end,
          load_failed_at = case when n.load_failed then coalesce(i.load_failed_at, clock_timestamp()) end,
          wait_reason = n.wait_reason, wait_text = n.wait_text, wait_host_key = n.wait_host_key,
          waits_since = case when n.wait_reason is null then null
            when n.wait_reason = i.wait_reason then i.waits_since else clock_timestamp() end
        from input n join locked l on l.id = n.batch_id
        where (select count(*) from locked) >= 0
          and i.batch_id = n.batch_id and i.idx = n.idx
          and i.state = 'running' and i.worker_id = $2::uuid and i.claim_no = n.claim_no
        returning i.batch_id, i.idx, i.attempts, i.finalized_at, 'cancelled' as error_kind, null::text as error_message
      ), ${RECORD_UNSENT}, ${COUNT_DOWN}
      select string_agg(id::text, ';') as finished from counted where open_items = 0`,
    values: [
      instance,
      workerId,
      plainArray(rows.map((r) => r.batchId)),
      plainArray(rows.map((r) => r.idx)),
      plainArray(rows.map((r) => r.claimNo)),
      plainArray(rows.map((r) => Math.min(r.delayMs, MAX_DELAY_MS))),
      plainArray(rows.map((r) => r.attempts)),
      plainArray(rows.map((r) => r.rounds)),
      plainArray(rows.map((r) => int4(r.waitedMs))),
      plainArray(rows.map((r) => String(r.loadFailed))),
      sparseArray(rows.map((r) => r.failedKey)),
      plainArray(rows.map((r) => r.failedRounds)),
      sparseArray(rows.map((r) => r.wait?.reason ?? null)),
      sparseTextArray(rows.map((r) => r.wait?.text ?? null)),
      sparseTextArray(rows.map((r) => r.wait?.hostKey ?? null)),
    ],
  });
  const { finished } = result.rows[0]!;
  return { finished: finished === null ? [] : finished.split(';') };
}
