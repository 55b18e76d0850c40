import type { Db } from '../../db/database.ts';

/**
 * Items that could run now, counted up to `most`, and workers whose lease stands. statement_timestamp, because an index
 * condition cannot hold the volatile clock_timestamp.
 */
export async function readDemand(
  db: Db,
  most: number,
  leaseSeconds: number,
): Promise<{ due: number; workers: number }> {
  const result = await db.query<{ due: number; workers: number }>({
    name: 'read_demand',
    text: `
      select least($1::int,
          (select coalesce(sum(total_items - next_idx), 0) from batch_cursors)
          + (select count(*) from (
              select from batch_items where not_before <= statement_timestamp() limit $1::int) released))::int as due,
        (select count(*) from workers
          where beat_at > clock_timestamp() - $2::int * interval '1 second')::int as workers`,
    values: [most, leaseSeconds],
  });
  return result.rows[0]!;
}

/** The catalogue version as committed, and the database's clock in epoch ms. */
export async function readVersionAndTime(db: Db): Promise<{ version: number; nowMs: number }> {
  const result = await db.query<{ version: number; now_ms: number }>({
    name: 'read_version_and_time',
    text: 'select version, (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms from catalog_state',
    values: [],
  });
  const { version, now_ms } = result.rows[0]!;
  return { version, nowMs: now_ms };
}
