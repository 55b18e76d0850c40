import type { Db } from '../db/database.ts';
import { TOKEN_PARTS } from '../model/usage-event.ts';
import type { TokenSums } from './usage.sql.ts';
import { FILTER_PARAMETERS, filterValues, MATCHES, type UsageFilter, youngestBatch } from './usage-filter.sql.ts';

/** What figures can be grouped by, and where it stands. `source` is the same for all events and needs no column. */
const COLUMNS = {
  model: 'r.model',
  host: 'r.host',
  provider: 'r.provider',
  policy: 'a.policy',
  project: 'a.project',
  team: 'a.team',
  principal_id: 'a.principal_id',
  credential_id: 'a.credential_id',
  batch_id: 'e.batch_id',
  error_kind: 'e.error_kind',
  finish_reason: 'e.finish_reason',
  status: 'e.status',
} as const;

export type Dimension = keyof typeof COLUMNS;
export const DIMENSIONS = Object.keys(COLUMNS) as readonly Dimension[];

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

const own = (n: number) => `$${FILTER_PARAMETERS + n}`;
const ASKED = `${own(1)}::text[]`;
const INTERVAL = `${own(2)}::interval`;
const EPOCH = `'epoch'::timestamptz`;
/** Start of an event's bucket; the epoch without an interval. */
export const BUCKET = `case when ${INTERVAL} is null then ${EPOCH} else date_bin(${INTERVAL}, e.ts, ${EPOCH}) end as bucket`;

/** SQL of a dimension's value where it is asked for. Else it is a constant: the planner drops it, and the join for it. */
export const nameIfAsked = (dimension: Dimension, column: string = COLUMNS[dimension], asked = ASKED) =>
  `case when '${dimension}' = any(${asked}) then ${column} end`;
const anyAsked = (dimensions: readonly Dimension[]) => `${ASKED} && array['${dimensions.join("', '")}']`;
/** What rows are grouped by. */
export const KEY_NAMES = ['bucket', ...DIMENSIONS.map((dimension) => `group_${dimension}`)].join(', ');
const OF_EVENT: readonly Dimension[] = ['error_kind', 'finish_reason', 'status'];
const OF_ROUTE = DIMENSIONS.filter((dimension) => COLUMNS[dimension].startsWith('r.'));
const OF_OWNER = DIMENSIONS.filter((dimension) => COLUMNS[dimension].startsWith('a.'));
const SUMMED = [...TOKEN_PARTS.map((part) => `tokens_${part}`), 'cost_nanos'];

// One batch stands for all whose owners are the same as far as is asked. Found before (`shareOwners`), and not by a part
// of this statement: with a window function in it no process but the first one would count. The sub-selects and the range
// of all ids make the planner expect one row, and so few groups: only then does each process add up what it reads.
const OWNERS = `left join (
      select u.batch_id, u.batch from unnest((select ${own(3)}::uuid[]), (select ${own(4)}::uuid[])) as u (batch_id, batch)
      where u.batch_id between '00000000-0000-0000-0000-000000000000' and 'ffffffff-ffff-ffff-ffff-ffffffffffff'
    ) o on o.batch_id = e.batch_id`;

// A sum that filters nulls skips the call for them, and most of these columns are null: 0.56 s against 0.96 s a million.
const sumOf = (column: string) => `sum(${column}) filter (where ${column} is not null)`;

/**
 * Events are counted by their own columns and by the ids of route and batch, once and in parallel; names come to the few
 * rows that this leaves, which are then added up by name. A join of all events with names takes as long as all sums.
 * Nothing is sorted here: for the sake of an order the planner sorts all events.
 */
const sums = ({ owners, durations }: { owners: boolean; durations: boolean }) => `
  select f.bucket, ${DIMENSIONS.map((dimension) => `${nameIfAsked(dimension, COLUMNS[dimension].replace('e.', 'f.'))} as group_${dimension}`).join(', ')},
    sum(f.requests)::bigint as requests, sum(f.errors)::bigint as errors, sum(f.unpriced)::bigint as unpriced,
    sum(f.sent)::bigint as sent, ${SUMMED.map((column) => `sum(f.${column})::text as ${column}`).join(', ')},
    ${durations ? "string_agg(f.durations, ''::bytea) as durations" : 'null::bytea as durations'},
    sum(f.duration_sum)::bigint as duration_sum, max(f.duration_max) as duration_max
  from (
    select ${BUCKET}, case when ${anyAsked([...OF_OWNER, 'batch_id'])} then ${owners ? 'o.batch' : 'e.batch_id'} end as batch_id,
      case when ${anyAsked(OF_ROUTE)} then e.route end as route,
      ${OF_EVENT.map((dimension) => `${nameIfAsked(dimension)} as ${dimension}`).join(', ')},
      count(*) as requests, count(e.error_kind) as errors, count(e.started_at) as sent,
      count(*) filter (where e.status > 0 and e.cost_nanos is null) as unpriced,
      ${SUMMED.map((column) => `${sumOf(`e.${column}`)} as ${column}`).join(', ')},
      ${
        durations
          ? "string_agg(int4send(e.duration_ms), ''::bytea) filter (where e.started_at is not null) as durations, null::bigint as duration_sum, null::int as duration_max"
          : 'sum(e.duration_ms) filter (where e.started_at is not null) as duration_sum, max(e.duration_ms) filter (where e.started_at is not null) as duration_max'
      }
    from usage_events e ${owners ? OWNERS : ''}
    where ${MATCHES} group by 1, 2, 3, 4, 5, 6
  ) f
  left join usage_routes r on r.id = f.route
  left join usage_attributions a on a.batch_id = f.batch_id
  group by ${KEY_NAMES}`;

const SUMS = {
  false_false: { name: 'sum_usage_figures', text: sums({ owners: false, durations: false }) },
  false_true: { name: 'sum_usage_figures_durations', text: sums({ owners: false, durations: true }) },
  true_false: { name: 'sum_usage_figures_owners', text: sums({ owners: true, durations: false }) },
  true_true: { name: 'sum_usage_figures_owners_durations', text: sums({ owners: true, durations: true }) },
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
 * Lets a report of this transaction scan tables and use two more processes, where that is off for the short statements of the
 * service, and steers it to count in hash tables: half the time for a million events (bench/usage.ts). What it plans
 * by is the planner's estimate for the period, whatever else is filtered by: with more than `mostDurations` events in it
 * durations are left to a second pass. So they are before Postgres 16, where several processes cannot gather them.
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
        (select count(*) from (select from usage_attributions where batch_id < $1::uuid limit ${FEW_BATCHES + 1}) b) as batches`,
    values: [batches],
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
 * Sums of the events that match, by the dimensions given and, with an interval, by buckets of that many ms since the epoch, in no
 * order. Groups without events do not occur. Run it behind `beginReport` and `beginFigures`.
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
    select o.batch_id, first_value(o.batch_id) over (partition by ${OF_OWNER.map((dimension) => nameIfAsked(dimension, `o.${dimension}`, '$2::text[]')).join(', ')}) as batch
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
