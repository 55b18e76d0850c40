import type { Db } from '../../lib/db/database.ts';
import { sql } from './sql.ts';

const LEASE = "interval '31 seconds'";

/** Makes every lease as old as if nobody had renewed it for longer than it lasts, and lets finished batches be as old. */
export async function ageLeases(db: Db): Promise<void> {
  await sql(db, `update workers set beat_at = beat_at - ${LEASE}`);
  await sql(db, `update openai_batches set lease_until = lease_until - ${LEASE} where lease_until is not null`);
  await sql(
    db,
    `update batches set compacting_until = compacting_until - ${LEASE}, completed_at = completed_at - ${LEASE}
     where completed_at is not null and results_id is null`,
  );
}
