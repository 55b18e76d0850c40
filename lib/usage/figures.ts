import { ApiError } from '../base/errors.ts';
import type { Database } from '../db/database.ts';
import { type Durations, durationsOf, percentiles } from './durations.ts';
import { LONGEST_BUCKET_MS, parseSpan } from './moment.ts';
import { badValue, parseFilter, single, type UsageQuery } from './query.ts';
import { costOf, type JsonInteger, tokenMap } from './sums.ts';
import { beginReport } from './usage.sql.ts';
import { countDurations } from './usage-durations.sql.ts';
import {
  beginFigures,
  DIMENSIONS,
  type Dimension,
  type FiguresRow,
  type GroupKey,
  sumFigures,
} from './usage-figures.sql.ts';
import type { UsageFilter } from './usage-filter.sql.ts';

const MAX_BUCKETS = 5000;
/** Of a period with too many events to take all durations along: up to so many that match are counted exactly. */
const EXACT_EVENTS = 200_000;

/** Figures of one group. */
export interface Figures {
  requests: number;
  /** Events with an error kind, sent or not. */
  errors: number;
  tokens: Record<string, JsonInteger>;
  /** Nano-USD; null when something was sent and none of it has a price. */
  cost_nanos: JsonInteger | null;
  /** Events that were answered and have no cost. */
  unpriced: number;
  /** Of the events that were sent; all null when none was. */
  duration_ms: Durations;
}

export type Group = Record<string, string | number | null>;

/**
 * Figures by group, most requests first ("Usage queries" in docs/spec/gateway-rules.md). Throws ApiError 400.
 * `mostDurations`: see `beginFigures`.
 */
export async function usageSummary(
  db: Database,
  asked: UsageQuery,
  mostDurations?: number,
): Promise<{ rows: ({ group: Group } & Figures)[]; from: string; to: string }> {
  const groupBy = parseGroupBy(asked.query) ?? ['source'];
  return db.transaction(async (tx) => {
    const filter = parseFilter(asked, await beginReport(tx), ['group_by']);
    const rows = await figuresOf(tx, filter, groupBy, null, mostDurations);
    return {
      rows: rows.map(({ row, figures }) => ({ group: groupOf(row, groupBy), ...figures })),
      ...isoPeriod(filter),
    };
  });
}

/**
 * Figures by bucket of time, oldest first, and by group where one is requested. Buckets are aligned to the epoch; those
 * without events are left out. Throws ApiError 400.
 */
export async function usageTimeseries(
  db: Database,
  asked: UsageQuery,
  mostDurations?: number,
): Promise<{ rows: ({ group?: Group; bucket: string } & Figures)[]; interval: string; from: string; to: string }> {
  const groupBy = parseGroupBy(asked.query);
  const interval = single(asked.query, 'interval');
  if (interval === null)
    throw new ApiError('missing_required_parameter', 'interval is required', { param: 'interval' });
  const span = parseSpan(interval);
  if (span === null) throw badValue('interval', 'must be <N>s, <N>m, <N>h or <N>d');
  const intervalMs = Math.min(span, LONGEST_BUCKET_MS);
  return db.transaction(async (tx) => {
    const filter = parseFilter(asked, await beginReport(tx), ['group_by', 'interval']);
    const bucketOf = (at: Date) => Math.floor(at.getTime() / intervalMs);
    if (bucketOf(new Date(filter.to.getTime() - 1)) - bucketOf(filter.from) >= MAX_BUCKETS) {
      throw badValue('interval', `must give at most ${MAX_BUCKETS} buckets in the period`);
    }
    const rows = await figuresOf(tx, filter, groupBy ?? [], intervalMs, mostDurations);
    return {
      rows: rows.map(({ row, figures }) => ({
        ...(groupBy === null ? {} : { group: groupOf(row, groupBy) }),
        bucket: row.bucket.toISOString(),
        ...figures,
      })),
      interval,
      ...isoPeriod(filter),
    };
  });
}

type GroupBy = readonly (Dimension | 'source')[];

function parseGroupBy(query: URLSearchParams): GroupBy | null {
  const names = [...new Set(query.getAll('group_by'))];
  for (const name of names) {
    if (name !== 'source' && !(DIMENSIONS as readonly string[]).includes(name)) {
      throw badValue('group_by', `must be one of source, ${DIMENSIONS.join(', ')}`);
    }
  }
  return names.length === 0 ? null : (names as GroupBy);
}

function groupOf(row: GroupKey, groupBy: GroupBy): Group {
  const group: Group = {};
  for (const dimension of groupBy) {
    if (dimension === 'source') group.source = 'batch';
    else group[dimension] = row[`group_${dimension}`];
  }
  return group;
}

function isoPeriod({ from, to }: UsageFilter): { from: string; to: string } {
  return { from: from.toISOString(), to: to.toISOString() };
}

async function figuresOf(
  tx: Parameters<typeof sumFigures>[0],
  filter: UsageFilter,
  groupBy: GroupBy,
  intervalMs: number | null,
  mostDurations?: number,
): Promise<{ row: FiguresRow; figures: Figures }[]> {
  const dimensions = groupBy.filter((dimension) => dimension !== 'source');
  const plan = await beginFigures(tx, filter, mostDurations);
  const rows = (await sumFigures(tx, filter, dimensions, intervalMs, plan)).sort(inOrder);
  const durations = plan.durations
    ? (row: FiguresRow) => durationsOf(row.durations)
    : await countedDurations(tx, filter, dimensions, intervalMs, rows);
  return rows.map((row) => ({
    row,
    figures: {
      requests: row.requests,
      errors: row.errors,
      tokens: tokenMap(row),
      cost_nanos: costOf(row),
      unpriced: row.unpriced,
      duration_ms: durations(row),
    },
  }));
}

/** By a second pass, which counts how often each duration occurs in a group. */
async function countedDurations(
  tx: Parameters<typeof sumFigures>[0],
  filter: UsageFilter,
  dimensions: readonly Dimension[],
  intervalMs: number | null,
  rows: readonly FiguresRow[],
): Promise<(row: FiguresRow) => Durations> {
  const sent = rows.reduce((sum, row) => sum + row.sent, 0);
  const counted = sent === 0 ? [] : await countDurations(tx, filter, dimensions, intervalMs, sent <= EXACT_EVENTS);
  const histograms = new Map(counted.map((row) => [keyOf(row), row.histogram]));
  return (row) => {
    const [p50, p95, p99] = percentiles(histograms.get(keyOf(row)) ?? '[]', [0.5, 0.95, 0.99]);
    const avg = row.duration_sum === null ? null : Math.round((row.duration_sum * 1000) / row.sent) / 1000;
    return { avg, p50: p50!, p95: p95!, p99: p99!, max: row.duration_max };
  };
}

/** Oldest bucket first, then most requests; ties by dimension, so that the order is the same each time. */
function inOrder(a: FiguresRow, b: FiguresRow): number {
  const larger = a.bucket.getTime() - b.bucket.getTime() || b.requests - a.requests;
  if (larger !== 0) return larger;
  for (const dimension of DIMENSIONS) {
    const [x, y] = [a[`group_${dimension}`], b[`group_${dimension}`]];
    if (x !== y) return y === null || (x !== null && x < y) ? -1 : 1;
  }
  return 0;
}

function keyOf(row: GroupKey): string {
  return JSON.stringify([row.bucket.getTime(), ...DIMENSIONS.map((dimension) => row[`group_${dimension}`])]);
}
