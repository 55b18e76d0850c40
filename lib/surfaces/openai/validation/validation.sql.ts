import type { Db } from '../../../db/database.ts';
import type { Attribution } from '../../../model/batch.ts';
import type { StoredFault } from '../openai-batches.sql.ts';

/*
 * The life of a row of openai_batches until its items exist. The lease is a time by the database's clock and names its
 * holder: each take and each renewal changes it, and every later UPDATE of the holder has to find it unchanged.
 *
 *   created --claim--> leased --start (in one transaction with batches and batch_items)--> in_progress_at
 *                        | ^
 *      lease runs out or | | renew            leased --end--> failed | expired
 *      is given back     v |                  created, leased --end--> cancelled (by the cancel itself)
 *                      created
 */

/** How long a validation may go without a sign of life before another replica takes it over. */
export const VALIDATION_LEASE_SECONDS = 30;

/** A batch whose validation is ours. */
export interface ValidationJob {
  id: string;
  attribution: Attribution;
  endpoint: string;
  object_id: string;
  /** Cancelled, but not ended: the cancel was cut off between its two steps. */
  cancelling: boolean;
  /** Until the completion window closes; negative after that. */
  left_seconds: number;
  age_seconds: number;
  /** Names the holder; see above. */
  lease: string;
}

const WAITING = 'in_progress_at is null and ended_at is null';
const DUE = `${WAITING} and (lease_until is null or lease_until < clock_timestamp())`;

const CLAIM_VALIDATION = `
  update openai_batches o set lease_until = clock_timestamp() + $1::int * interval '1 second'
  where o.id = (select id from openai_batches where ${DUE} order by id limit 1 for update skip locked)
  returning o.id, o.attribution, o.endpoint, o.object_id, o.cancelling_at is not null as cancelling,
    extract(epoch from o.expires_at - clock_timestamp())::float8 as left_seconds,
    extract(epoch from clock_timestamp() - o.created_at)::float8 as age_seconds, o.lease_until::text as lease`;

/** Takes the oldest batch that waits; null if none waits. */
export async function claimValidation(db: Db): Promise<ValidationJob | null> {
  const { rows } = await db.query<ValidationJob>({
    name: 'claim_openai_validation',
    text: CLAIM_VALIDATION,
    values: [VALIDATION_LEASE_SECONDS],
  });
  return rows[0] ?? null;
}

/** The holder of a lease. */
export type ValidationHold = Pick<ValidationJob, 'id' | 'lease'>;

const HELD = `id = $1::uuid and lease_until = $2::timestamptz and ${WAITING}`;

const RENEW_VALIDATION = `
  update openai_batches set lease_until = clock_timestamp() + $3::int * interval '1 second'
  where ${HELD} and cancelling_at is null
  returning lease_until::text as lease`;

/** Renews the lease and returns the new one; null when it is another's by now, or the batch was cancelled. */
export async function renewValidation(db: Db, hold: ValidationHold): Promise<string | null> {
  const { rows } = await db.query<{ lease: string }>({
    name: 'renew_openai_validation',
    text: RENEW_VALIDATION,
    values: [hold.id, hold.lease, VALIDATION_LEASE_SECONDS],
  });
  return rows[0]?.lease ?? null;
}

const RELEASE_VALIDATION = `
  update openai_batches set lease_until = clock_timestamp() + $3::float8 * interval '1 second' where ${HELD}`;

/** Returns the lease: after so many seconds anyone may take the batch. */
export async function releaseValidation(db: Db, hold: ValidationHold, afterSeconds: number): Promise<void> {
  const values = [hold.id, hold.lease, afterSeconds];
  await db.query({ name: 'release_openai_validation', text: RELEASE_VALIDATION, values });
}

const START_BATCH = `
  update openai_batches set in_progress_at = clock_timestamp(), model = $3::text, lease_until = null
  where ${HELD} and cancelling_at is null`;

/** The validation passed; in the transaction that makes the batch's items. False when it is ours no more. */
export async function startOpenaiBatch(tx: Db, hold: ValidationHold, model: string | null): Promise<boolean> {
  const values = [hold.id, hold.lease, model];
  return (await tx.query({ name: 'start_openai_batch', text: START_BATCH, values })).rowCount === 1;
}

const END_VALIDATION = `
  update openai_batches set ended_at = clock_timestamp(), final_status = $3::text, errors = $4::jsonb, lease_until = null
  where ${HELD} and cancelling_at is null`;

/** Ends a batch that will never run. False when it is ours no more, or was cancelled: the cancel ends it then. */
export async function endValidation(
  db: Db,
  hold: ValidationHold,
  end: { status: 'failed'; errors: readonly StoredFault[] } | { status: 'expired' },
): Promise<boolean> {
  const errors = end.status === 'failed' ? JSON.stringify(end.errors) : null;
  const values = [hold.id, hold.lease, end.status, errors];
  return (await db.query({ name: 'end_openai_validation', text: END_VALIDATION, values })).rowCount === 1;
}

const END_CANCELLED = `
  update openai_batches set ended_at = clock_timestamp(), final_status = 'cancelled', lease_until = null
  where id = $1::uuid and ${WAITING} and cancelling_at is not null`;

/**
 * Ends a batch that was cancelled before it ran. A worker that validates it at this moment finds that out by the guards
 * above.
 */
export async function endCancelled(db: Db, id: string): Promise<void> {
  await db.query({ name: 'end_cancelled_openai_batch', text: END_CANCELLED, values: [id] });
}
