import { createHash } from 'node:crypto';
import { int4, plainArray, sparseArray, sparseTextArray, textArray } from '../db/arrays.ts';
import type { Db } from '../db/database.ts';
import { WORKER_LIMIT_MS } from '../db/silence.ts';
import { TOKEN_PARTS, type UsageFacts } from '../model/usage-event.ts';

/** One outcome as the commit statement takes it. */
export interface OutcomeRow {
  batchId: string;
  idx: number;
  claimNo: number;
  state: 'completed' | 'discarded' | 'cancelled';
  /** Whole text with the `batch item: ` prefix; of discarded items only. */
  error: string | null;
  /** Where the answer stands in the group's segment; null without one. */
  span: { offset: number; length: number; crc: number } | null;
  usage: UsageFacts;
}

export interface CommitResult {
  /** How many items this statement made final; the others were no longer this worker's. */
  committed: number;
  /** Batches that have no open item any more because of this statement. */
  finished: string[];
}

const tokenColumns = TOKEN_PARTS.map((part) => `tokens_${part}`).join(', ');

/**
 * The group commit, one statement and so one transaction: locks the batch rows in id order, makes the items final that
 * are still this worker's (state, worker and claim number must match), inserts their usage events, drops their concurrency
 * rows, counts the batches down and completes those that reach zero. Replicas that commit into one batch wait for each
 * other on its row and see the other's count, so the last two items cannot both miss the end.
 */
const COMMIT = `
  with input as (
    select * from unnest($3::uuid[], $4::int[], $5::int[], $6::item_state[], $7::text[], $8::int[], $9::int[], $10::bigint[],
      $11::int[], $12::int[], $13::int[], $14::float8[], $15::int[], $16::int[], $17::text[], $18::text[], $19::text[],
      $20::uuid[], $21::bigint[], $22::bigint[], $23::bigint[], $24::bigint[], $25::bigint[], $26::bigint[], $27::bigint[],
      $28::bigint[], $29::bigint[], $30::bigint[], $31::bigint[], $32::bigint[], $33::bigint[], $34::text[])
      as t(batch_id, idx, claim_no, state, error, out_offset, out_length, out_crc, status, attempts, duration_ms, started_ms,
      response_start_ms, response_end_ms, error_kind, error_message, finish_reason, route, ${tokenColumns}, cost_nanos,
      cost_breakdown)
  ), locked as materialized (
    select id from batches where id = any($35::uuid[]) order by id for update
  ), routes as (
    insert into usage_routes (id, requested_model, model, provider, host, host_key, adapter, pricing, resolved_via)
    select * from unnest($37::uuid[], $38::text[], $39::text[], $40::text[], $41::text[], $42::text[], $43::text[],
      $44::text[], $45::text[])
    on conflict (id) do nothing
  ), updated as (
    update batch_items i set
      state = n.state, error = n.error, finalized_at = clock_timestamp(), attempts = n.attempts,
      segment_id = case when n.out_length is null then null else $2::uuid end,
      output_offset = n.out_offset, output_length = n.out_length, output_crc = n.out_crc
    from input n
    where (select count(*) from locked) >= 0
      and i.batch_id = n.batch_id and i.idx = n.idx
      and i.state = 'running' and i.worker_id = $1::uuid and i.claim_no = n.claim_no
    returning i.batch_id, i.idx, i.claim_no, i.finalized_at
  ), events as (
    insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, started_at, response_start_ms,
      response_end_ms, error_kind, error_message, finish_reason, route, instance, ${tokenColumns}, cost_nanos, cost_breakdown)
    select u.batch_id, u.idx, u.finalized_at, n.status, n.attempts, n.duration_ms, to_timestamp(n.started_ms / 1000),
      n.response_start_ms, n.response_end_ms, n.error_kind, n.error_message, n.finish_reason, n.route, $36::text,
      ${TOKEN_PARTS.map((part) => `n.tokens_${part}`).join(', ')}, n.cost_nanos, n.cost_breakdown::jsonb
    from updated u join input n on n.batch_id = u.batch_id and n.idx = u.idx
  ), freed as (
    delete from limit_concurrency c using updated u
    where c.batch_id = u.batch_id and c.idx = u.idx and c.claim_no = u.claim_no
  ), counts as (
    select batch_id, count(*)::int as n from updated group by batch_id
  ), refs as (
    insert into segment_refs (segment_id, batch_id)
    select distinct $2::uuid, u.batch_id from updated u join input n on n.batch_id = u.batch_id and n.idx = u.idx
    where n.out_length is not null
    on conflict do nothing
  ), counted as (
    update batches b set open_items = b.open_items - c.n,
      completed_at = case when b.open_items - c.n = 0 then clock_timestamp() else b.completed_at end
    from counts c where b.id = c.batch_id
    returning b.id, b.open_items
  )
  select (select count(*)::int from updated) as committed,
    (select string_agg(id::text, ';') from counted where open_items = 0) as finished`;

export interface RouteRow {
  id: string;
  facts: UsageFacts['route'];
}

/** Id of a route: the same facts always give the same id. */
export function routeId(facts: UsageFacts['route']): string {
  const text = JSON.stringify([
    facts.requestedModel,
    facts.model,
    facts.provider,
    facts.host,
    facts.hostKey,
    facts.adapter,
    facts.pricing,
    facts.resolvedVia,
  ]);
  const h = createHash('md5').update(text).digest('hex');
  return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
}

/**
 * Runs the group commit. `rows` are in (batch, idx) order without duplicates; `routes[i]` is the route id of `rows[i]`,
 * `newRoutes` the ones that may not be stored yet. Safe to repeat after an unknown outcome: rows that are final are not
 * touched again.
 */
export async function commitOutcomes(
  db: Db,
  group: {
    workerId: string;
    instance: string;
    segmentId: string | null;
    rows: readonly OutcomeRow[];
    routes: readonly (string | null)[];
    newRoutes: readonly RouteRow[];
  },
): Promise<CommitResult> {
  const { rows, newRoutes } = group;
  const usage = rows.map((row) => row.usage);
  const since = (u: UsageFacts, at: number | null) =>
    at === null || u.startedAt === null ? null : int4(at - u.startedAt);
  const parts = TOKEN_PARTS.map((part) => sparseArray(usage.map((u) => u.tokens?.[part] ?? null)));
  const result = await db.query<{ committed: number; finished: string | null }>({
    name: 'commit_outcomes',
    withinMs: WORKER_LIMIT_MS,
    text: COMMIT,
    values: [
      group.workerId,
      group.segmentId,
      plainArray(rows.map((r) => r.batchId)),
      plainArray(rows.map((r) => r.idx)),
      plainArray(rows.map((r) => r.claimNo)),
      plainArray(rows.map((r) => r.state)),
      sparseTextArray(rows.map((r) => r.error)),
      sparseArray(rows.map((r) => r.span?.offset ?? null)),
      sparseArray(rows.map((r) => r.span?.length ?? null)),
      sparseArray(rows.map((r) => r.span?.crc ?? null)),
      plainArray(usage.map((u) => u.status)),
      plainArray(usage.map((u) => u.attempts)),
      plainArray(usage.map((u) => int4(u.durationMs))),
      sparseArray(usage.map((u) => u.startedAt)),
      sparseArray(usage.map((u) => since(u, u.responseStartedAt))),
      sparseArray(usage.map((u) => since(u, u.responseEndedAt))),
      sparseTextArray(usage.map((u) => u.errorKind)),
      sparseTextArray(usage.map((u) => u.errorMessage)),
      sparseTextArray(usage.map((u) => u.finishReason)),
      plainArray(group.routes),
      ...parts,
      sparseArray(usage.map((u) => u.costNanos)),
      sparseTextArray(usage.map((u) => (u.costBreakdown === null ? null : JSON.stringify(u.costBreakdown)))),
      plainArray([...new Set(rows.map((r) => r.batchId))]),
      group.instance,
      plainArray(newRoutes.map((r) => r.id)),
      textArray(newRoutes.map((r) => r.facts.requestedModel)),
      textArray(newRoutes.map((r) => r.facts.model)),
      textArray(newRoutes.map((r) => r.facts.provider)),
      textArray(newRoutes.map((r) => r.facts.host)),
      textArray(newRoutes.map((r) => r.facts.hostKey)),
      textArray(newRoutes.map((r) => r.facts.adapter)),
      textArray(newRoutes.map((r) => r.facts.pricing)),
      textArray(newRoutes.map((r) => r.facts.resolvedVia)),
    ],
  });
  const { committed, finished } = result.rows[0]!;
  return { committed, finished: finished === null ? [] : finished.split(';') };
}
