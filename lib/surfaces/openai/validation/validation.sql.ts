import { lockForTransaction } from '../../../db/advisory-locks.sql.ts';
import type { Database, Db } from '../../../db/database.ts';
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

/*
 * Owners take turns: next is the one whose last turn lies back furthest, with its oldest batch. The recursion finds the
 * owners by one look into the index each, however many batches they have. A batch waits while the same file is checked for
 * another one: it will find the result. Two candidates an owner, because the first may be locked by its cancel.
 */
const CLAIM_VALIDATION = `
  with recursive owners as (
    (select owner from openai_batches where ${WAITING} order by owner limit 1)
    union all
    select (select owner from openai_batches where ${WAITING} and owner > w.owner order by owner limit 1)
    from owners w where w.owner is not null
  ), candidates as materialized (
    select c.id, coalesce(t.taken_at, '-infinity') as last_turn
    from owners w left join validation_turns t on t.owner = w.owner
    cross join lateral (
      select d.id from openai_batches d
      where d.owner = w.owner and ${DUE} and not exists (
        select from openai_batches h
        where h.object_id = d.object_id and h.endpoint = d.endpoint and h.lease_until >= clock_timestamp()
          and h.in_progress_at is null and h.ended_at is null)
      order by d.id limit 2
    ) c
  ), taken as (
    select o.id, o.owner from candidates c join openai_batches o on o.id = c.id
    where ${DUE} order by c.last_turn, c.id limit 1 for update of o skip locked
  ), turn as (
    insert into validation_turns (owner, taken_at) select owner, clock_timestamp() from taken
    on conflict (owner) do update set taken_at = excluded.taken_at
  )
  update openai_batches o set lease_until = clock_timestamp() + $1::int * interval '1 second'
  from taken where o.id = taken.id
  returning o.id, o.attribution, o.endpoint, o.object_id, o.cancelling_at is not null as cancelling,
    extract(epoch from o.expires_at - clock_timestamp())::float8 as left_seconds,
    extract(epoch from clock_timestamp() - o.created_at)::float8 as age_seconds, o.lease_until::text as lease`;

/** Takes the batch whose turn it is; null if none waits. One replica at a time chooses, so that each sees the last turn. */
export async function claimValidation(db: Pick<Database, 'transaction'>): Promise<ValidationJob | null> {
  return db.transaction(async (tx) => {
    await lockForTransaction(tx, 'validationTurns');
    const { rows } = await tx.query<ValidationJob>({
      name: 'claim_openai_validation',
      text: CLAIM_VALIDATION,
      values: [VALIDATION_LEASE_SECONDS],
    });
    return rows[0] ?? null;
  });
}

/** Forgets the turns of owners who have had none for a day. */
export async function purgeValidationTurns(db: Db): Promise<void> {
  await db.query({
    name: 'purge_validation_turns',
    text: `delete from validation_turns where taken_at < statement_timestamp() - interval '1 day'`,
    values: [],
  });
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
  update openai_batches set in_progress_at = clock_timestamp(), model = $3::text, check_rules = $4::smallint,
    lease_until = null
  where ${HELD} and cancelling_at is null`;

/**
 * The validation by `rules` passed; in the transaction that makes the batch's items. False when it is ours no more.
 */
export async function startOpenaiBatch(
  tx: Db,
  hold: ValidationHold,
  { model, rules }: { model: string | null; rules: number },
): Promise<boolean> {
  const values = [hold.id, hold.lease, model, rules];
  return (await tx.query({ name: 'start_openai_batch', text: START_BATCH, values })).rowCount === 1;
}

const END_VALIDATION = `
  update openai_batches set ended_at = clock_timestamp(), final_status = $3::text, errors = $4::jsonb,
    check_rules = $5::smallint, checked_requests = $6::int, lease_until = null
  where ${HELD} and cancelling_at is null`;

/**
 * `rules`: what the file was checked by, when the errors are all that is wrong with the file, or `requests` of it passed
 * and the owner had no room for them. Other batches on the file then need no check of their own.
 */
export type ValidationEnd =
  | { status: 'failed'; errors: readonly StoredFault[]; rules?: number; requests?: number }
  | { status: 'expired'; errors?: never; rules?: never; requests?: never };

/** Ends a batch that will never run. False when it is ours no more, or was cancelled: the cancel ends it then. */
export async function endValidation(db: Db, hold: ValidationHold, end: ValidationEnd): Promise<boolean> {
  const { status, errors, rules = null, requests = null } = end;
  const values = [hold.id, hold.lease, status, errors ? JSON.stringify(errors) : null, rules, requests];
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
