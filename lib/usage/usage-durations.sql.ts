import type { Db } from '../db/database.ts';
import { BUCKET, type Dimension, figureValues, type GroupKey, KEY_NAMES } from './usage-figures.sql.ts';
import { MATCHES, type UsageFilter } from './usage-filter.sql.ts';

// Seven to nine significant bits: 511 as it is, 1,001 to 1,000, 10,001 to 9,984; at most 0.8 % too low.
const ROUNDED = `case when e.duration_ms < 512 then e.duration_ms when e.duration_ms < 2048 then e.duration_ms & -4
  when e.duration_ms < 8192 then e.duration_ms & -16 when e.duration_ms < 32768 then e.duration_ms & -64
  when e.duration_ms < 131072 then e.duration_ms & -256 else e.duration_ms & -1024 end`;

const DURATIONS = `
  select ${KEY_NAMES}, '[' || string_agg(duration || ',' || n, ',') || ']' as histogram
  from (
    select ${BUCKET},
      case when 'model' = any($38::text[]) then r.model end as group_model,
      case when 'host' = any($38::text[]) then r.host end as group_host,
      case when 'provider' = any($38::text[]) then r.provider end as group_provider,
      case when 'policy' = any($38::text[]) then a.policy end as group_policy,
      case when 'project' = any($38::text[]) then a.project end as group_project,
      case when 'team' = any($38::text[]) then a.team end as group_team,
      case when 'principal_id' = any($38::text[]) then a.principal_id end as group_principal_id,
      case when 'credential_id' = any($38::text[]) then a.credential_id end as group_credential_id,
      case when 'batch_id' = any($38::text[]) then e.batch_id end as group_batch_id,
      case when 'error_kind' = any($38::text[]) then e.error_kind end as group_error_kind,
      case when 'finish_reason' = any($38::text[]) then e.finish_reason end as group_finish_reason,
      case when 'status' = any($38::text[]) then e.status end as group_status,
      case when $40::bool then e.duration_ms else ${ROUNDED} end as duration, count(*) as n
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
