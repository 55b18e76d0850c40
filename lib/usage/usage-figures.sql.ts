import type { Db } from '../db/database.ts';
import type { TokenSums } from './usage.sql.ts';
import { filterValues, MATCHES, type UsageFilter, youngestBatch } from './usage-filter.sql.ts';

/** The dimensions that figures can be grouped by. `source` is the same for all events and needs no column. */
const OF_ROUTE = ['model', 'host', 'provider'] as const;
const OF_OWNER = ['policy', 'project', 'team', 'principal_id', 'credential_id'] as const;
const OF_EVENT = ['batch_id', 'error_kind', 'finish_reason', 'status'] as const;
export const DIMENSIONS = [...OF_ROUTE, ...OF_OWNER, ...OF_EVENT] as const;
export type Dimension = (typeof DIMENSIONS)[number];

/**
 * Which group a row is about: the bucket's start (the epoch without an interval) and its value by dimension, null when
 * the events have none or it was not asked for.
 */
export interface GroupKey extends Record<`group_${Exclude<Dimension, 'status'>}`, string | null> {
  bucket: Date;
  group_status: number | null;
}

/** Figures of one group. */
export interface FiguresRow extends TokenSums, GroupKey {
  requests: number;
  errors: number;
  unpriced: number;
  cost_nanos: string | null;
  /** Events that were sent; durations are theirs, in milliseconds. */
  sent: number;
  duration_sum: number | null;
  duration_max: number | null;
  /** Each duration as four bytes, big-endian, in no order; null when none was sent, and without `durations`. */
  durations: Buffer | null;
}

// Parameters after the 37 of the filter: $38 the dimensions asked for, $39 the interval, $40 and $41 batches and the
// one that stands for each. A dimension that is not asked for is a constant in each plan: the planner drops it with its
// join.

/** Start of an event's bucket; the epoch without an interval. */
export const BUCKET = `case when $39::interval is null then 'epoch'::timestamptz
      else date_bin($39::interval, e.ts, 'epoch'::timestamptz) end as bucket`;

/** The columns that rows are grouped by. */
export const KEY_NAMES = `bucket,
    group_model, group_host, group_provider, group_policy, group_project, group_team, group_principal_id,
    group_credential_id, group_batch_id, group_error_kind, group_finish_reason, group_status`;

// One batch stands for all whose owners are the same in the dimensions that count. Found before (`shareOwners`), and
// not by a part of this statement: with a window function in it no process but the first one would count. The
// sub-selects and the range of all ids make the planner expect one row, and so few groups: only then does each process
// add up what it reads.
const OWNERS = `left join (
      select u.batch_id, u.batch from unnest((select $40::uuid[]), (select $41::uuid[])) as u (batch_id, batch)
      where u.batch_id between '00000000-0000-0000-0000-000000000000' and 'ffffffff-ffff-ffff-ffff-ffffffffffff'
    ) o on o.batch_id = e.batch_id`;

/*
 * Events are counted by their own columns and by the ids of route and batch, once and in parallel. The few rows that
 * this leaves are joined with names, and added up by name. A join of all events with names takes as long as all sums.
 * Nothing is sorted here: for the sake of an order the planner sorts all events.
 *
 * The statement has four forms: with or without owners found before, with or without all durations. The pieces below are
 * what they share, in the order of the text.
 */

const BY_NAME = `
  select f.bucket,
    case when 'model' = any($38::text[]) then r.model end as group_model,
    case when 'host' = any($38::text[]) then r.host end as group_host,
    case when 'provider' = any($38::text[]) then r.provider end as group_provider,
    case when 'policy' = any($38::text[]) then a.policy end as group_policy,
    case when 'project' = any($38::text[]) then a.project end as group_project,
    case when 'team' = any($38::text[]) then a.team end as group_team,
    case when 'principal_id' = any($38::text[]) then a.principal_id end as group_principal_id,
    case when 'credential_id' = any($38::text[]) then a.credential_id end as group_credential_id,
    case when 'batch_id' = any($38::text[]) then f.batch_id end as group_batch_id,
    case when 'error_kind' = any($38::text[]) then f.error_kind end as group_error_kind,
    case when 'finish_reason' = any($38::text[]) then f.finish_reason end as group_finish_reason,
    case when 'status' = any($38::text[]) then f.status end as group_status,
    sum(f.requests)::bigint as requests, sum(f.errors)::bigint as errors, sum(f.unpriced)::bigint as unpriced,
    sum(f.sent)::bigint as sent,
    sum(f.tokens_input)::text as tokens_input, sum(f.tokens_output)::text as tokens_output,
    sum(f.tokens_cache_read)::text as tokens_cache_read, sum(f.tokens_cache_creation)::text as tokens_cache_creation,
    sum(f.tokens_cache_creation_5m)::text as tokens_cache_creation_5m,
    sum(f.tokens_cache_creation_1h)::text as tokens_cache_creation_1h,
    sum(f.tokens_reasoning)::text as tokens_reasoning, sum(f.tokens_audio_input)::text as tokens_audio_input,
    sum(f.tokens_audio_output)::text as tokens_audio_output,
    sum(f.tokens_accepted_prediction)::text as tokens_accepted_prediction,
    sum(f.tokens_rejected_prediction)::text as tokens_rejected_prediction,
    sum(f.tokens_server_tool_use)::text as tokens_server_tool_use, sum(f.cost_nanos)::text as cost_nanos,
    sum(f.duration_sum)::bigint as duration_sum, max(f.duration_max) as duration_max`;

const NEEDS_BATCH = `$38::text[] && array['policy', 'project', 'team', 'principal_id', 'credential_id', 'batch_id']`;

// A sum that filters nulls skips the call for them, and most of these columns are null: 0.56 s against 0.96 s a million.
const COUNTS = `case when $38::text[] && array['model', 'host', 'provider'] then e.route end as route,
      case when 'error_kind' = any($38::text[]) then e.error_kind end as error_kind,
      case when 'finish_reason' = any($38::text[]) then e.finish_reason end as finish_reason,
      case when 'status' = any($38::text[]) then e.status end as status,
      count(*) as requests, count(e.error_kind) as errors, count(e.started_at) as sent,
      count(*) filter (where e.status > 0 and e.cost_nanos is null) as unpriced,
      sum(e.tokens_input) filter (where e.tokens_input is not null) as tokens_input,
      sum(e.tokens_output) filter (where e.tokens_output is not null) as tokens_output,
      sum(e.tokens_cache_read) filter (where e.tokens_cache_read is not null) as tokens_cache_read,
      sum(e.tokens_cache_creation) filter (where e.tokens_cache_creation is not null) as tokens_cache_creation,
      sum(e.tokens_cache_creation_5m) filter (where e.tokens_cache_creation_5m is not null) as tokens_cache_creation_5m,
      sum(e.tokens_cache_creation_1h) filter (where e.tokens_cache_creation_1h is not null) as tokens_cache_creation_1h,
      sum(e.tokens_reasoning) filter (where e.tokens_reasoning is not null) as tokens_reasoning,
      sum(e.tokens_audio_input) filter (where e.tokens_audio_input is not null) as tokens_audio_input,
      sum(e.tokens_audio_output) filter (where e.tokens_audio_output is not null) as tokens_audio_output,
      sum(e.tokens_accepted_prediction) filter (where e.tokens_accepted_prediction is not null) as tokens_accepted_prediction,
      sum(e.tokens_rejected_prediction) filter (where e.tokens_rejected_prediction is not null) as tokens_rejected_prediction,
      sum(e.tokens_server_tool_use) filter (where e.tokens_server_tool_use is not null) as tokens_server_tool_use,
      sum(e.cost_nanos) filter (where e.cost_nanos is not null) as cost_nanos`;

const ALL_DURATIONS = `string_agg(int4send(e.duration_ms), ''::bytea) filter (where e.started_at is not null) as durations,
      null::bigint as duration_sum, null::int as duration_max`;
const SUM_OF_DURATIONS = `sum(e.duration_ms) filter (where e.started_at is not null) as duration_sum,
      max(e.duration_ms) filter (where e.started_at is not null) as duration_max`;

const BY_ID = `
    where ${MATCHES} group by 1, 2, 3, 4, 5, 6
  ) f
  left join usage_routes r on r.id = f.route
  left join usage_attributions a on a.batch_id = f.batch_id
  group by ${KEY_NAMES}`;

const SUMS = {
  false_false: {
    name: 'sum_usage_figures',
    text: `${BY_NAME}, null::bytea as durations
  from (
    select ${BUCKET}, case when ${NEEDS_BATCH} then e.batch_id end as batch_id,
      ${COUNTS},
      ${SUM_OF_DURATIONS}
    from usage_events e ${BY_ID}`,
  },
  false_true: {
    name: 'sum_usage_figures_durations',
    text: `${BY_NAME}, string_agg(f.durations, ''::bytea) as durations
  from (
    select ${BUCKET}, case when ${NEEDS_BATCH} then e.batch_id end as batch_id,
      ${COUNTS},
      ${ALL_DURATIONS}
    from usage_events e ${BY_ID}`,
  },
  true_false: {
    name: 'sum_usage_figures_owners',
    text: `${BY_NAME}, null::bytea as durations
  from (
    select ${BUCKET}, case when ${NEEDS_BATCH} then o.batch end as batch_id,
      ${COUNTS},
      ${SUM_OF_DURATIONS}
    from usage_events e ${OWNERS} ${BY_ID}`,
  },
  true_true: {
    name: 'sum_usage_figures_owners_durations',
    text: `${BY_NAME}, string_agg(f.durations, ''::bytea) as durations
  from (
    select ${BUCKET}, case when ${NEEDS_BATCH} then o.batch end as batch_id,
      ${COUNTS},
      ${ALL_DURATIONS}
    from usage_events e ${OWNERS} ${BY_ID}`,
  },
} as const;

/** How figures are best gathered, by how much there is. */
export interface FiguresPlan {
  /** Sums come with all durations: one pass over the events, and exact percentiles. */
  durations: boolean;
  /** Few enough batches to look up what they have in common before their events are counted. */
  fewBatches: boolean;
}

/** Durations of so many events are taken along: 8 MB from Postgres for a million. */
const MOST_DURATIONS = 2_000_000;
const FEW_BATCHES = 20_000;

/**
 * Lets a report of this transaction scan tables and use two more processes, where that is off for the short statements
 * of the service, and steers it to count in hash tables. Half the time for a million events (bench/usage.ts). What it
 * plans by is the planner's estimate for the period, whatever else is filtered by: with more than `mostDurations`
 * events in it durations are left to a second pass. So they are before Postgres 16, where several processes cannot
 * gather them.
 */
export async function beginFigures(tx: Db, filter: UsageFilter, mostDurations = MOST_DURATIONS): Promise<FiguresPlan> {
  const batches = youngestBatch(filter.to);
  const settings = await tx.query<{ settings: string[]; parallel: boolean; batches: number }>({
    name: 'configure_usage_figures',
    text: `select array[set_config('max_parallel_workers_per_gather', '2', true), set_config('work_mem', '128MB', true),
        set_config('parallel_setup_cost', '0', true), set_config('parallel_tuple_cost', '0.01', true),
        set_config('cpu_operator_cost', '0.05', true),
        set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'on', true)] as settings,
        current_setting('server_version_num')::int >= 160000 as parallel,
        (select count(*) from (select from usage_attributions where batch_id < $1::uuid limit $2::int) b) as batches`,
    values: [batches, FEW_BATCHES + 1],
  });
  const explained = await tx.query<{ 'QUERY PLAN': [{ Plan: { 'Plan Rows': number } }] }>({
    name: 'estimate_usage_figures',
    text: `explain (format json) select from usage_events e
      where e.ts >= $1::timestamptz and e.ts < $2::timestamptz and e.batch_id < $3::uuid`,
    values: [filter.from, filter.to, batches],
  });
  const { parallel, batches: found } = settings.rows[0]!;
  const events = explained.rows[0]!['QUERY PLAN'][0].Plan['Plan Rows'];
  return { durations: parallel && events <= mostDurations, fewBatches: found <= FEW_BATCHES };
}

/** Values of the filter, the dimensions and the interval. */
export function figureValues(
  filter: UsageFilter,
  dimensions: readonly Dimension[],
  intervalMs: number | null,
): unknown[] {
  return [...filterValues(filter), dimensions, intervalMs === null ? null : `${intervalMs} milliseconds`];
}

/**
 * Sums of the events that match, by the dimensions given and, with an interval, by buckets of that many ms since the
 * epoch, in no order. Groups without events do not occur. Run it behind `beginReport` and `beginFigures`.
 */
export async function sumFigures(
  tx: Db,
  filter: UsageFilter,
  dimensions: readonly Dimension[],
  intervalMs: number | null,
  plan: FiguresPlan,
): Promise<FiguresRow[]> {
  const has = (some: readonly Dimension[]) => some.some((dimension) => dimensions.includes(dimension));
  const combined = intervalMs !== null || has(OF_ROUTE);
  const owners =
    plan.fewBatches && combined && has(OF_OWNER) && !has(['batch_id'])
      ? await shareOwners(tx, filter, dimensions)
      : null;
  const { name, text } = SUMS[`${owners !== null}_${plan.durations}`];
  const values = [...figureValues(filter, dimensions, intervalMs), ...(owners ? [owners.batches, owners.shared] : [])];
  const result = await tx.query<FiguresRow>({ name, text, values });
  return result.rows;
}

const SHARED = `
  select array_agg(o.batch_id)::text as batches, array_agg(o.batch)::text as shared
  from (
    select o.batch_id, first_value(o.batch_id) over (partition by
      case when 'policy' = any($2::text[]) then o.policy end,
      case when 'project' = any($2::text[]) then o.project end,
      case when 'team' = any($2::text[]) then o.team end,
      case when 'principal_id' = any($2::text[]) then o.principal_id end,
      case when 'credential_id' = any($2::text[]) then o.credential_id end
    ) as batch
    from usage_attributions o where o.batch_id < $1::uuid) o`;

/** Batches, and for each the one that stands for all with the same owner; two arrays of ids as text, null without any. */
async function shareOwners(
  tx: Db,
  filter: UsageFilter,
  dimensions: readonly Dimension[],
): Promise<{ batches: string | null; shared: string | null }> {
  const values = [youngestBatch(filter.to), dimensions];
  const result = await tx.query<{ batches: string | null; shared: string | null }>({
    name: 'share_usage_owners',
    text: SHARED,
    values,
  });
  return result.rows[0]!;
}
