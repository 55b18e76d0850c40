import type { Db } from '../db/database.ts';
import type { TokenPart } from '../model/usage-event.ts';
import { filterValues, MATCHES, type UsageFilter } from './usage-filter.sql.ts';

/**
 * Makes the transaction one for reports, with one view of the data for all its statements, and returns the database's time
 * (epoch ms with a fraction). Plans are made for the parameters at hand, since most filters fold away.
 */
export async function beginReport(tx: Db): Promise<number> {
  await tx.query({
    name: 'begin_usage_report',
    text: 'set transaction isolation level repeatable read, read only',
    values: [],
  });
  const result = await tx.query<{ settings: string[]; now: number }>({
    name: 'configure_usage_report',
    text: `select array[set_config('plan_cache_mode', 'force_custom_plan', true), set_config('jit', 'off', true)] as settings,
        (extract(epoch from clock_timestamp()) * 1000)::float8 as now`,
    values: [],
  });
  return result.rows[0]!.now;
}

/**
 * Milliseconds since the last success of a model among the latest 2,000 events; null without one. The bound keeps it at some
 * milliseconds, however rare the model is.
 */
export async function readLastSuccess(db: Db, model: string): Promise<number | null> {
  const result = await db.query<{ age_ms: number | null }>({
    name: 'read_last_success',
    text: `
      select extract(epoch from clock_timestamp() - max(e.ts))::float8 * 1000 as age_ms
      from (select ts, route, error_kind from usage_events order by ts desc limit 2000) e
      join usage_routes r on r.id = e.route
      where r.model = $1::text and e.error_kind is null`,
    values: [model],
  });
  return result.rows[0]!.age_ms;
}

/** Sums as text: a bigint column adds up to more than a number holds. Parts that do not occur are null. */
export type TokenSums = Record<`tokens_${TokenPart}`, string | null>;

/** A usage event with its route and attribution. Counts are below 2^53 (lib/usage/tokens.ts), money is text. */
export interface EventRow extends Record<`tokens_${TokenPart}`, number | null> {
  batch_id: string;
  batch_idx: number;
  ts: Date;
  status: number;
  attempts: number;
  duration_ms: number;
  started_at: Date | null;
  response_start_ms: number | null;
  response_end_ms: number | null;
  error_kind: string | null;
  error_message: string | null;
  finish_reason: string | null;
  instance: string | null;
  cost_nanos: string | null;
  cost_breakdown: Record<string, number> | null;
  requested_model: string | null;
  model: string | null;
  provider: string | null;
  host: string | null;
  host_key: string | null;
  adapter: string | null;
  pricing: string | null;
  resolved_via: string | null;
  owner: string | null;
  policy: string | null;
  project: string | null;
  team: string | null;
  principal_kind: string | null;
  principal_id: string | null;
  credential_kind: string | null;
  credential_id: string | null;
}

/** An event's place in the order of (ts, batch_id, batch_idx). */
export interface EventPosition {
  ts: Date;
  batch_id: string;
  batch_idx: number;
}

// The page is found first, by the index on time; names are looked up for its rows only. Its own parameters follow the 37
// of the filter.
const LIST_EVENTS = `
  select e.batch_id, e.batch_idx, e.ts, e.status, e.attempts, e.duration_ms, e.started_at, e.response_start_ms,
    e.response_end_ms, e.error_kind, e.error_message, e.finish_reason, e.instance,
    e.tokens_input, e.tokens_output, e.tokens_cache_read, e.tokens_cache_creation, e.tokens_cache_creation_5m,
    e.tokens_cache_creation_1h, e.tokens_reasoning, e.tokens_audio_input, e.tokens_audio_output,
    e.tokens_accepted_prediction, e.tokens_rejected_prediction, e.tokens_server_tool_use,
    e.cost_nanos::text, e.cost_breakdown,
    r.requested_model, r.model, r.provider, r.host, r.host_key, r.adapter, r.pricing, r.resolved_via,
    a.owner, a.policy, a.project, a.team, a.principal_kind, a.principal_id, a.credential_kind, a.credential_id
  from (
    select * from usage_events e
    where ${MATCHES}
      and ($38::timestamptz is null
        or (e.ts, e.batch_id, e.batch_idx) < ($38::timestamptz, $39::uuid, $40::int))
    order by e.ts desc, e.batch_id desc, e.batch_idx desc
    limit $41::int
  ) e
  left join usage_routes r on r.id = e.route
  left join usage_attributions a on a.batch_id = e.batch_id
  order by e.ts desc, e.batch_id desc, e.batch_idx desc`;

/** Events that match, newest first; `after` is the last one of the page before. Run it behind `beginReport`. */
export async function listEvents(
  tx: Db,
  filter: UsageFilter,
  after: EventPosition | null,
  limit: number,
): Promise<EventRow[]> {
  const result = await tx.query<EventRow>({
    name: 'list_usage_events',
    text: LIST_EVENTS,
    values: [...filterValues(filter), after?.ts ?? null, after?.batch_id ?? null, after?.batch_idx ?? null, limit],
  });
  return result.rows;
}

export interface BatchSums extends TokenSums {
  cost_nanos: string | null;
  unpriced: number;
}

const SUM_BATCH = `
  select
    sum(tokens_input)::text as tokens_input, sum(tokens_output)::text as tokens_output,
    sum(tokens_cache_read)::text as tokens_cache_read, sum(tokens_cache_creation)::text as tokens_cache_creation,
    sum(tokens_cache_creation_5m)::text as tokens_cache_creation_5m,
    sum(tokens_cache_creation_1h)::text as tokens_cache_creation_1h, sum(tokens_reasoning)::text as tokens_reasoning,
    sum(tokens_audio_input)::text as tokens_audio_input, sum(tokens_audio_output)::text as tokens_audio_output,
    sum(tokens_accepted_prediction)::text as tokens_accepted_prediction,
    sum(tokens_rejected_prediction)::text as tokens_rejected_prediction,
    sum(tokens_server_tool_use)::text as tokens_server_tool_use,
    sum(cost_nanos)::text as cost_nanos,
    (count(*) filter (where status > 0 and cost_nanos is null))::int as unpriced
  from usage_events where batch_id = $1::uuid`;

/** Returns the sums of one batch's events so far. */
export async function sumBatch(db: Db, batchId: string): Promise<BatchSums> {
  const result = await db.query<BatchSums>({ name: 'sum_batch_usage', text: SUM_BATCH, values: [batchId] });
  return result.rows[0]!;
}
