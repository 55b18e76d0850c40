import type { Db } from '../db/database.ts';
import {
  BUCKET,
  DIMENSIONS,
  type Dimension,
  figureValues,
  type GroupKey,
  KEY_NAMES,
  nameIfAsked,
} from './usage-figures.sql.ts';
import { FILTER_PARAMETERS, MATCHES, type UsageFilter } from './usage-filter.sql.ts';

// Seven to nine significant bits: 511 as it is, 1,001 to 1,000, 10,001 to 9,984; at most 0.8 % too low.
const ROUNDED = `case when e.duration_ms < 512 then e.duration_ms when e.duration_ms < 2048 then e.duration_ms & -4
  when e.duration_ms < 8192 then e.duration_ms & -16 when e.duration_ms < 32768 then e.duration_ms & -64
  when e.duration_ms < 131072 then e.duration_ms & -256 else e.duration_ms & -1024 end`;

const DURATIONS = `
  select ${KEY_NAMES}, '[' || string_agg(duration || ',' || n, ',') || ']' as histogram
  from (
    select ${BUCKET}, ${DIMENSIONS.map((dimension) => `${nameIfAsked(dimension)} as group_${dimension}`).join(', ')},
      case when $${FILTER_PARAMETERS + 3}::bool then e.duration_ms else ${ROUNDED} end as duration, count(*) as n
    from usage_events e
    left join usage_routes r on r.id = e.route
    left join usage_attributions a on a.batch_id = e.batch_id
    where ${MATCHES} and e.started_at is not null group by ${KEY_NAMES}, duration
  ) as counted
  group by ${KEY_NAMES}`;

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
  const values = [...figureValues(filter, dimensions, intervalMs), exact];
  const result = await tx.query<DurationsRow>({ name: 'count_usage_durations', text: DURATIONS, values });
  return result.rows;
}
