import { TOKEN_PARTS } from '../usage/event.ts';
import type { Db } from './db.ts';
import type { TokenSums } from './usage.sql.ts';
import { FILTER_PARAMETERS, filterValues, MATCHES, type UsageFilter } from './usage-filter.sql.ts';

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
export interface GroupKey extends Record<`group_${Dimension}`, string | number | null> {
  bucket: Date;
}

/** Figures of one group. */
export interface FiguresRow extends TokenSums, GroupKey {
  requests: number;
  errors: number;
  unpriced: number;
  cost_nanos: string | null;
  /** Events that were sent; durations are theirs. */
  sent: number;
  /** Milliseconds; null when none was sent. */
  duration_avg: number | null;
  duration_max: number | null;
}

const own = (n: number) => `$${FILTER_PARAMETERS + n}`;
const INTERVAL = `${own(2)}::interval`;
const EPOCH = `'epoch'::timestamptz`;

// A dimension that nobody asked for is a constant, which the planner drops, and so is the join that it would need.
const KEYS = [
  `case when ${INTERVAL} is null then ${EPOCH} else date_bin(${INTERVAL}, e.ts, ${EPOCH}) end as bucket`,
  ...DIMENSIONS.map(
    (dimension) =>
      `case when '${dimension}' = any(${own(1)}::text[]) then ${COLUMNS[dimension]} end as group_${dimension}`,
  ),
].join(', ');
const KEY_NAMES = ['bucket', ...DIMENSIONS.map((dimension) => `group_${dimension}`)].join(', ');

const EVENTS = `
  from usage_events e
  left join usage_routes r on r.id = e.route
  left join usage_attributions a on a.batch_id = e.batch_id
  where ${MATCHES}`;

// A sum that filters nulls skips the call for them, and most of these columns are null: 0.56 s against 0.96 s a million.
const sumOf = (column: string) => `(sum(e.${column}) filter (where e.${column} is not null))::text as ${column}`;

// Most requests first; ties in a stable order.
const ORDER = ['bucket', 'requests desc', ...DIMENSIONS.map((dimension) => `group_${dimension}`)].join(', ');

const SUMS = `
  select ${KEYS}, count(*) as requests, count(e.error_kind) as errors,
    count(*) filter (where e.status > 0 and e.cost_nanos is null) as unpriced,
    ${TOKEN_PARTS.map((part) => sumOf(`tokens_${part}`)).join(', ')}, ${sumOf('cost_nanos')},
    count(e.started_at) as sent,
    round(avg(e.duration_ms) filter (where e.started_at is not null), 3)::float8 as duration_avg,
    max(e.duration_ms) filter (where e.started_at is not null) as duration_max
  ${EVENTS} group by ${KEY_NAMES} order by ${ORDER}`;

// Seven to nine significant bits: 511 as it is, 1,001 to 1,000, 10,001 to 9,984; at most 0.8 % too low.
const ROUNDED = `case when e.duration_ms < 512 then e.duration_ms when e.duration_ms < 2048 then e.duration_ms & -4
  when e.duration_ms < 8192 then e.duration_ms & -16 when e.duration_ms < 32768 then e.duration_ms & -64
  when e.duration_ms < 131072 then e.duration_ms & -256 else e.duration_ms & -1024 end`;

const DURATIONS = `
  select ${KEY_NAMES}, '[' || string_agg(duration || ',' || n, ',') || ']' as histogram
  from (
    select ${KEYS}, case when ${own(3)}::bool then e.duration_ms else ${ROUNDED} end as duration, count(*) as n
    ${EVENTS} and e.started_at is not null group by ${KEY_NAMES}, duration
  ) as counted
  group by ${KEY_NAMES}`;

/**
 * Lets a report of this transaction use two more processes, where that is off for the short statements of the service, and
 * steers it to count in hash tables: half the time for a million events (bench/usage.ts).
 */
export async function beginFigures(tx: Db): Promise<void> {
  await tx.query({
    name: 'configure_usage_figures',
    text: `select set_config('max_parallel_workers_per_gather', '2', true), set_config('work_mem', '64MB', true),
        set_config('parallel_setup_cost', '0', true), set_config('parallel_tuple_cost', '0', true),
        set_config('enable_sort', 'off', true)`,
    values: [],
  });
}

/**
 * Sums of the events that match, by the dimensions given and, with an interval, by buckets of that many ms since the epoch:
 * buckets ascending, then most requests first. Groups without events do not occur. Run it behind `beginReport` and `beginFigures`.
 */
export async function sumFigures(
  tx: Db,
  filter: UsageFilter,
  dimensions: readonly Dimension[],
  intervalMs: number | null,
): Promise<FiguresRow[]> {
  const values = [...filterValues(filter), dimensions, intervalMs === null ? null : `${intervalMs} milliseconds`];
  const result = await tx.query<FiguresRow>({ name: 'sum_usage_figures', text: SUMS, values });
  return result.rows;
}

/** Durations of the sent events of a group, as JSON: each duration followed by how many events had it, in no order. */
export interface DurationsRow extends GroupKey {
  histogram: string;
}

/**
 * How long the sent events of the same groups took: percentiles without a sort of all events. Unless `exact`, durations are
 * rounded down by at most 0.8 %, which keeps the histogram of a million events small.
 */
export async function countDurations(
  tx: Db,
  filter: UsageFilter,
  dimensions: readonly Dimension[],
  intervalMs: number | null,
  exact: boolean,
): Promise<DurationsRow[]> {
  const values = [
    ...filterValues(filter),
    dimensions,
    intervalMs === null ? null : `${intervalMs} milliseconds`,
    exact,
  ];
  const result = await tx.query<DurationsRow>({ name: 'count_usage_durations', text: DURATIONS, values });
  return result.rows;
}
