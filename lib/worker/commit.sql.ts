import { createHash } from 'node:crypto';
import { int4, plainArray } from '../db/arrays.ts';
import type { Db } from '../db/database.ts';
import { WORKER_LIMIT_MS } from '../db/silence.ts';
import { type InputColumn, statementInput, table, value } from '../db/statement-input.ts';
import { uuidOfHex } from '../model/public-id.ts';
import type { TokenPart, UsageFacts } from '../model/usage-event.ts';

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

/** The input of one commit statement. */
export interface CommitGroup {
  workerId: string;
  instance: string;
  segmentId: string | null;
  /** In (batch, idx) order, without duplicates. */
  rows: readonly OutcomeRow[];
  /** The route id of each row. */
  routes: readonly (string | null)[];
  /** Routes that may not be stored yet. */
  newRoutes: readonly RouteRow[];
}

/** Milliseconds from the first call to `at`. */
const sinceStart = ({ startedAt }: UsageFacts, at: number | null) =>
  at === null || startedAt === null ? null : int4(at - startedAt);

const tokenColumn = (part: TokenPart): InputColumn<CommitGroup, OutcomeRow> => [
  'bigint',
  ({ usage }) => usage.tokens?.[part],
];

const INPUT = statementInput({
  worker_id: value('uuid', ({ workerId }: CommitGroup) => workerId),
  segment_id: value('uuid', ({ segmentId }: CommitGroup) => segmentId),
  instance: value('text', ({ instance }: CommitGroup) => instance),
  batch_ids: value('uuid[]', ({ rows }: CommitGroup) => plainArray([...new Set(rows.map((r) => r.batchId))])),
  items: table(({ rows }: CommitGroup) => rows, {
    batch_id: ['uuid', (r) => r.batchId],
    idx: ['int', (r) => r.idx],
    claim_no: ['int', (r) => r.claimNo],
    state: ['item_state', (r) => r.state],
    error: ['text', (r) => r.error],
    out_offset: ['int', (r) => r.span?.offset],
    out_length: ['int', (r) => r.span?.length],
    out_crc: ['bigint', (r) => r.span?.crc],
    status: ['int', (r) => r.usage.status],
    attempts: ['int', (r) => r.usage.attempts],
    duration_ms: ['int', (r) => int4(r.usage.durationMs)],
    started_ms: ['float8', (r) => r.usage.startedAt],
    response_start_ms: ['int', (r) => sinceStart(r.usage, r.usage.responseStartedAt)],
    response_end_ms: ['int', (r) => sinceStart(r.usage, r.usage.responseEndedAt)],
    error_kind: ['text', (r) => r.usage.errorKind],
    error_message: ['text', (r) => r.usage.errorMessage],
    finish_reason: ['text', (r) => r.usage.finishReason],
    route: ['uuid', (_, i, group) => group.routes[i]],
    tokens_input: tokenColumn('input'),
    tokens_output: tokenColumn('output'),
    tokens_cache_read: tokenColumn('cache_read'),
    tokens_cache_creation: tokenColumn('cache_creation'),
    tokens_cache_creation_5m: tokenColumn('cache_creation_5m'),
    tokens_cache_creation_1h: tokenColumn('cache_creation_1h'),
    tokens_reasoning: tokenColumn('reasoning'),
    tokens_audio_input: tokenColumn('audio_input'),
    tokens_audio_output: tokenColumn('audio_output'),
    tokens_accepted_prediction: tokenColumn('accepted_prediction'),
    tokens_rejected_prediction: tokenColumn('rejected_prediction'),
    tokens_server_tool_use: tokenColumn('server_tool_use'),
    cost_nanos: ['bigint', (r) => r.usage.costNanos],
    cost_breakdown: ['text', ({ usage }) => usage.costBreakdown && JSON.stringify(usage.costBreakdown)],
  }),
  new_routes: table(({ newRoutes }: CommitGroup) => newRoutes, {
    id: ['uuid', (r) => r.id],
    requested_model: ['text', (r) => r.facts.requestedModel],
    model: ['text', (r) => r.facts.model],
    provider: ['text', (r) => r.facts.provider],
    host: ['text', (r) => r.facts.host],
    host_key: ['text', (r) => r.facts.hostKey],
    adapter: ['text', (r) => r.facts.adapter],
    pricing: ['text', (r) => r.facts.pricing],
    resolved_via: ['text', (r) => r.facts.resolvedVia],
  }),
});

/**
 * The group commit, one statement and so one transaction. It locks the batch rows in id order and makes the items final
 * that are still this worker's (state, worker and claim number must match). It inserts their usage events, drops their
 * concurrency rows, counts the batches down and completes those that reach zero. Replicas that commit into one batch
 * wait for each other on its row and see the other's count, so the last two items cannot both miss the end.
 */
const COMMIT = `
  with input as (
    select * from ${INPUT.sql.items}
  ), locked as materialized (
    select id from batches where id = any(${INPUT.sql.batch_ids}) order by id for update
  ), routes as (
    insert into usage_routes (id, requested_model, model, provider, host, host_key, adapter, pricing, resolved_via)
    select id, requested_model, model, provider, host, host_key, adapter, pricing, resolved_via from ${INPUT.sql.new_routes}
    on conflict (id) do nothing
  ), updated as (
    update batch_items i set
      state = n.state, error = n.error, finalized_at = clock_timestamp(), attempts = n.attempts,
      segment_id = case when n.out_length is null then null else ${INPUT.sql.segment_id} end,
      output_offset = n.out_offset, output_length = n.out_length, output_crc = n.out_crc,
      wait_reason = null, wait_text = null, wait_host_key = null, waits_since = null
    from input n
    where (select count(*) from locked) >= 0
      and i.batch_id = n.batch_id and i.idx = n.idx
      and i.state = 'running' and i.worker_id = ${INPUT.sql.worker_id} and i.claim_no = n.claim_no
    returning i.batch_id, i.idx, i.claim_no, i.finalized_at, i.state
  ), events as (
    insert into usage_events (batch_id, batch_idx, ts, status, attempts, duration_ms, started_at, response_start_ms,
      response_end_ms, error_kind, error_message, finish_reason, route, instance,
      tokens_input, tokens_output, tokens_cache_read, tokens_cache_creation, tokens_cache_creation_5m, tokens_cache_creation_1h, tokens_reasoning, tokens_audio_input, tokens_audio_output,
      tokens_accepted_prediction, tokens_rejected_prediction, tokens_server_tool_use, cost_nanos, cost_breakdown)
    select u.batch_id, u.idx, u.finalized_at, n.status, n.attempts, n.duration_ms, to_timestamp(n.started_ms / 1000),
      n.response_start_ms, n.response_end_ms, n.error_kind, n.error_message, n.finish_reason, n.route, ${INPUT.sql.instance},
      n.tokens_input, n.tokens_output, n.tokens_cache_read, n.tokens_cache_creation, n.tokens_cache_creation_5m,
      n.tokens_cache_creation_1h, n.tokens_reasoning, n.tokens_audio_input, n.tokens_audio_output,
      n.tokens_accepted_prediction, n.tokens_rejected_prediction, n.tokens_server_tool_use, n.cost_nanos, n.cost_breakdown::jsonb
    from updated u join input n on n.batch_id = u.batch_id and n.idx = u.idx
  ), freed as (
    delete from limit_concurrency c using updated u
    where c.batch_id = u.batch_id and c.idx = u.idx and c.claim_no = u.claim_no
  ), counts as (
    select batch_id, count(*)::int as n, count(*) filter (where state = 'completed')::int as completed,
      count(*) filter (where state = 'cancelled')::int as cancelled
    from updated group by batch_id
  ), refs as (
    insert into segment_refs (segment_id, batch_id)
    select distinct ${INPUT.sql.segment_id}, u.batch_id from updated u join input n on n.batch_id = u.batch_id and n.idx = u.idx
    where n.out_length is not null
    on conflict do nothing
  ), counted as (
    update batches b set open_items = b.open_items - c.n, completed_items = b.completed_items + c.completed,
      cancelled_items = b.cancelled_items + c.cancelled,
      discarded_items = b.discarded_items + c.n - c.completed - c.cancelled,
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
  return uuidOfHex(createHash('md5').update(text).digest('hex'));
}

/**
 * Runs the group commit. Safe to repeat after an unknown outcome: rows that are final are not touched again.
 */
export async function commitOutcomes(db: Db, group: CommitGroup): Promise<CommitResult> {
  const result = await db.query<{ committed: number; finished: string | null }>({
    name: 'commit_outcomes',
    withinMs: WORKER_LIMIT_MS,
    text: COMMIT,
    values: INPUT.values(group),
  });
  const { committed, finished } = result.rows[0]!;
  return { committed, finished: finished === null ? [] : finished.split(';') };
}
