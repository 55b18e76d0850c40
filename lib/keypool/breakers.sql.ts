import type { Db } from '../db/database.ts';
import { CHANNELS } from '../queue/postgres.sql.ts';
import type { BreakerReason } from './breaker.ts';
import type { Failure } from './failures.ts';

// Every statement below is a transaction of its own and turns the wait for the disk off in it: a crash of Postgres may
// forget the last moments of breakers. The clock is read once, beside that. Failures are locked before breakers. The statements mirror the rules of
// lib/keypool/breaker.ts, to the step, and ignore by themselves what changes nothing.

/** A breaker that is not closed, or the failures of one that is. Milliseconds count from the moment of the read. */
export interface BreakerRow {
  breaker_key: string;
  /** Empty for the key's own breaker. */
  model: string;
  /** Null for a closed breaker. */
  reason: BreakerReason | null;
  step: number | null;
  /** Null without end; not above 0 when half-open. */
  open_for_ms: number | null;
  /** Null when no probe was let through; not above 0 when its time is over. */
  probe_for_ms: number | null;
  last_owner: string | null;
  /** Entries `batch,idx,age in ms`, joined by semicolons. */
  failures: string | null;
}

/** All breakers that are not closed, and all recent failures. Models that have rested are left out. */
export async function readBreakers(db: Db): Promise<BreakerRow[]> {
  const result = await db.query<BreakerRow>({
    name: 'read_breakers',
    text: `
      with t as materialized (select clock_timestamp() as now),
      b as (
        select breakers.* from breakers, t where reason <> 'forbidden' or open_until > t.now
      ),
      f as (
        select breaker_failures.* from breaker_failures, t where recorded_at > t.now - interval '10 seconds'
      )
      select breaker_key, model, b.reason, b.step,
        extract(epoch from b.open_until - t.now)::float8 * 1000 as open_for_ms,
        extract(epoch from b.probe_until - t.now)::float8 * 1000 as probe_for_ms,
        b.last_owner,
        (select string_agg(concat_ws(',', e.batch_id, e.idx, extract(epoch from t.now - e.seen_at)::float8 * 1000), ';')
          from unnest(f.batches, f.idxs, f.seen_at) as e(batch_id, idx, seen_at)) as failures
      from b full join f using (breaker_key, model) cross join t`,
    values: [],
  });
  return result.rows;
}

/** One breaker's rows for an admin; times are absolute. */
export interface BreakerDetailRow {
  model: string;
  reason: BreakerReason;
  step: number;
  open_until: Date | null;
  half_open: boolean;
}

/** The rows of one key: its own breaker and those of its models, as far as they are not closed. */
export async function readBreaker(db: Db, breakerKey: string): Promise<BreakerDetailRow[]> {
  const result = await db.query<BreakerDetailRow>({
    name: 'read_breaker',
    text: `
      with t as materialized (select clock_timestamp() as now)
      select model, reason, step, open_until, coalesce(open_until <= t.now, false) as half_open
      from breakers, t
      where breaker_key = $1::text and (reason <> 'forbidden' or open_until > t.now)
      order by model`,
    values: [breakerKey],
  });
  return result.rows;
}

/** A call that failed: `ageMs` ago it was sent. */
export interface FailedCall {
  breakerKey: string;
  ageMs: number;
  /** The probe that it was; null for any other call. */
  probeId: string | null;
  owner: string;
}

/** The failures of one (key, model) that are new. `at` of each is its age in milliseconds. */
export interface NewFailures {
  breakerKey: string;
  model: string;
  reason: 'server_error' | 'network';
  owner: string;
  failures: readonly Failure[];
}

/**
 * Adds failures to those of a closed breaker, and opens it when they suffice: `mergeFailures` and `opensBreaker`. The
 * row of failures serialises the replicas, so the last of them sees what the others added.
 */
export async function recordFailures(db: Db, { breakerKey, model, reason, owner, failures }: NewFailures) {
  await db.query({
    name: 'record_failures',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true)),
      old as (
        delete from breaker_failures using t
        where breaker_key = $1::text and model <> $2::text and recorded_at < t.now - interval '1 hour'
      ),
      added as (
        select coalesce(array_agg(e.batch_id), '{}') as batches, coalesce(array_agg(e.idx), '{}') as idxs,
          coalesce(array_agg(t.now - e.age_ms * interval '1 millisecond'), '{}') as seen_at
        from t, unnest($5::uuid[], $6::int[], $7::float8[]) as e(batch_id, idx, age_ms)
      ),
      failed as (
        insert into breaker_failures as f (breaker_key, model, batches, idxs, seen_at, recorded_at)
        select $1::text, $2::text, added.batches, added.idxs, added.seen_at, t.now
        from t, added
        where not exists (select from breakers b
          where b.breaker_key = $1::text and b.model = $2::text and (b.reason <> 'forbidden' or b.open_until > t.now))
        on conflict (breaker_key, model) do update set
          recorded_at = excluded.recorded_at,
          (batches, idxs, seen_at) = (
            select array_agg(batch_id), array_agg(idx), array_agg(seen_at)
            from (
              select batch_id, idx, max(seen_at) as seen_at,
                row_number() over (partition by idx < 0
                  order by max(seen_at) desc, (array_agg(is_new order by seen_at desc, is_new desc))[1] desc, batch_id, idx
                ) as place
              from (
                select *, false from unnest(f.batches, f.idxs, f.seen_at)
                union all
                select *, true from unnest(excluded.batches, excluded.idxs, excluded.seen_at)
              ) as e(batch_id, idx, seen_at, is_new)
              group by batch_id, idx
            ) as latest
            where place <= case when idx < 0 then 2 else 3 end
          )
        returning f.batches, f.idxs, f.seen_at
      ),
      recent as (
        select count(*) filter (where e.idx >= 0) as items, count(distinct e.batch_id) filter (where e.idx >= 0) as failing,
          count(distinct e.batch_id) as called
        from t, failed, unnest(failed.batches, failed.idxs, failed.seen_at) as e(batch_id, idx, seen_at)
        where e.seen_at > t.now - interval '10 seconds'
      )
      insert into breakers as b (breaker_key, model, reason, step, opened_at, open_until, last_owner)
      select $1::text, $2::text, $3::text, 1, t.now, t.now + interval '1 second', $4::text
      from t, recent
      where recent.items >= 3 and (recent.failing >= 2 or recent.called < 2)
      on conflict (breaker_key, model) do update set
        reason = excluded.reason, step = excluded.step, opened_at = excluded.opened_at, open_until = excluded.open_until,
        last_owner = excluded.last_owner, probe_id = null, probe_until = null
      where b.reason = 'forbidden' and b.open_until <= excluded.opened_at`,
    values: [
      breakerKey,
      model,
      reason,
      owner,
      failures.map((one) => one.batchId),
      failures.map((one) => one.idx),
      failures.map((one) => one.at),
    ],
  });
}

/** The failed probe of a (key, model): one step further. */
export async function recordProbeFailure(
  db: Db,
  call: Omit<FailedCall, 'ageMs'>,
  model: string,
  reason: 'server_error' | 'network',
): Promise<void> {
  await db.query({
    name: 'record_probe_failure',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      update breakers set
        reason = $4::text,
        step = least(step + 1, 7),
        opened_at = t.now,
        open_until = greatest(open_until, t.now + least(60, 2 ^ step) * interval '1 second'),
        last_owner = $5::text,
        probe_id = null,
        probe_until = null
      from t
      where breaker_key = $1::text and model = $2::text and probe_id = $3::uuid`,
    values: [call.breakerKey, model, call.probeId, reason, call.owner],
  });
}

/** A 429 that names its time: open for it, from now. Of calls sent while open only a later end (by 1 s) counts. */
export async function recordRetryAfter(db: Db, call: FailedCall, retryAfterMs: number): Promise<void> {
  await db.query({
    name: 'record_retry_after',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      insert into breakers as b (breaker_key, reason, step, opened_at, open_until, last_owner)
      select $1::text, 'rate_limit', 0, t.now, t.now + $2::float8 * interval '1 millisecond', $5::text from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason,
        opened_at = excluded.opened_at,
        open_until = greatest(b.open_until, excluded.open_until),
        last_owner = excluded.last_owner,
        probe_id = null,
        probe_until = null
      where b.reason <> 'auth' and (b.reason <> 'account' or b.probe_id = $4::uuid)
        and (b.probe_id = $4::uuid or b.open_until <= excluded.opened_at - $3::float8 * interval '1 millisecond'
          or excluded.open_until > b.open_until + interval '1 second')`,
    values: [call.breakerKey, retryAfterMs, call.ageMs, call.probeId, call.owner],
  });
}

/** A 401: open without end. */
export async function recordAuthFailure(db: Db, breakerKey: string): Promise<void> {
  await db.query({
    name: 'record_auth_failure',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      insert into breakers as b (breaker_key, reason, step, opened_at, open_until)
      select $1::text, 'auth', 0, t.now, null from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason, opened_at = excluded.opened_at, open_until = null, probe_id = null, probe_until = null
      where b.reason <> 'auth'`,
    values: [breakerKey],
  });
}

/** The key's account has no credit: open for 10 minutes. */
export async function recordAccountFailure(db: Db, call: FailedCall): Promise<void> {
  await db.query({
    name: 'record_account_failure',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      insert into breakers as b (breaker_key, reason, step, opened_at, open_until, last_owner)
      select $1::text, 'account', 0, t.now, t.now + interval '10 minutes', $4::text from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason,
        opened_at = excluded.opened_at,
        open_until = greatest(b.open_until, excluded.open_until),
        last_owner = excluded.last_owner,
        probe_id = null,
        probe_until = null
      where b.reason <> 'auth'
        and (b.reason <> 'account' or b.probe_id = $3::uuid
          or b.open_until <= excluded.opened_at - $2::float8 * interval '1 millisecond')`,
    values: [call.breakerKey, call.ageMs, call.probeId, call.owner],
  });
}

/** A 403: the model rests on this key for 60 s. Models of the key that have rested for an hour go with it. */
export async function recordForbidden(db: Db, call: Omit<FailedCall, 'owner'>, model: string): Promise<void> {
  await db.query({
    name: 'record_forbidden',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true)),
      old as (
        delete from breakers using t
        where breaker_key = $1::text and reason = 'forbidden' and model <> $2::text
          and open_until < t.now - interval '1 hour'
      )
      insert into breakers as b (breaker_key, model, reason, opened_at, open_until)
      select $1::text, $2::text, 'forbidden', t.now, t.now + interval '60 seconds' from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason,
        step = 0,
        opened_at = excluded.opened_at,
        open_until = greatest(b.open_until, excluded.open_until),
        probe_id = null,
        probe_until = null
      where b.probe_id = $4::uuid or b.open_until <= excluded.opened_at - $3::float8 * interval '1 millisecond'`,
    values: [call.breakerKey, model, call.ageMs, call.probeId],
  });
}

/**
 * A success that was seen `ageMs` ago: closes the breakers of the key and of the model, unless they opened since, and
 * drops the failures before it. A 401 and a 403 stay; no credit ends with the success of its probe.
 */
export async function closeBreaker(
  db: Db,
  call: Pick<FailedCall, 'breakerKey' | 'ageMs' | 'probeId'>,
  model: string,
): Promise<void> {
  await db.query({
    name: 'close_breaker',
    text: `
      with t as materialized (
        select clock_timestamp() - $3::float8 * interval '1 millisecond' as seen, set_config('synchronous_commit', 'off', true)
      ),
      forgotten as (
        delete from breaker_failures f using t
        where breaker_key = $1::text and model = $2::text and not exists (select from unnest(f.seen_at) as s where s > t.seen)
        returning 1
      ),
      kept as (
        update breaker_failures f set (batches, idxs, seen_at) = (
          select array_agg(e.batch_id), array_agg(e.idx), array_agg(e.seen_at)
          from unnest(f.batches, f.idxs, f.seen_at) as e(batch_id, idx, seen_at)
          where e.seen_at > t.seen
        )
        from t
        where breaker_key = $1::text and model = $2::text and exists (select from unnest(f.seen_at) as s where s > t.seen)
        returning 1
      )
      delete from breakers using t
      where (select count(*) from forgotten) + (select count(*) from kept) >= 0
        and breaker_key = $1::text and model in ('', $2::text) and opened_at <= t.seen
        and reason not in ('auth', 'forbidden') and (reason <> 'account' or probe_id = $4::uuid)`,
    values: [call.breakerKey, model, call.ageMs, call.probeId],
  });
}

/**
 * Takes the one probe of a half-open breaker for `leaseMs`; false when it is not half-open or the probe is taken. The
 * owner of the last probe comes a second after everybody else.
 */
export async function takeProbe(
  db: Db,
  breaker: { breakerKey: string; model: string },
  probe: { id: string; owner: string; leaseMs: number },
): Promise<boolean> {
  const result = await db.query({
    name: 'take_probe',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      update breakers set probe_id = $3::uuid, probe_until = t.now + $4::float8 * interval '1 millisecond'
      from t
      where breaker_key = $1::text and model = $2::text and reason <> 'forbidden'
        and open_until <= t.now - case when last_owner = $5::text then interval '1 second' else interval '0' end
        and (probe_until is null or probe_until <= t.now)`,
    values: [breaker.breakerKey, breaker.model, probe.id, probe.leaseMs, probe.owner],
  });
  return result.rowCount === 1;
}

/** Returns a probe whose call said nothing about the key. The next one is another owner's first. */
export async function releaseProbe(db: Db, breakerKey: string, probeId: string, owner: string): Promise<void> {
  await db.query({
    name: 'release_probe',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      update breakers set
        probe_id = null, probe_until = null, last_owner = $3::text, open_until = greatest(open_until, t.now)
      from t
      where breaker_key = $1::text and probe_id = $2::uuid`,
    values: [breakerKey, probeId, owner],
  });
}

/**
 * Closes everything of a key, its models too, and tells the replicas (`lib/queue/postgres.ts` listens). Durable: an admin
 * asked for it.
 */
export async function deleteBreakers(db: Db, breakerKey: string): Promise<void> {
  await db.query({
    name: 'delete_breakers',
    text: `
      with forgotten as (delete from breaker_failures where breaker_key = $1::text returning 1),
      gone as (
        delete from breakers where (select count(*) from forgotten) >= 0 and breaker_key = $1::text
      )
      select pg_notify($2::text, '')`,
    values: [breakerKey, CHANNELS.breakers],
  });
}

/** Items that have waited for breakers look again at once. Those that no key serves yet wait again, without a call. */
export async function wakeWaiting(db: Db): Promise<void> {
  await db.query({
    name: 'wake_waiting',
    text: `
      with waiting as (
        select batch_id, idx from batch_items
        where not_before > clock_timestamp() and waited_ms > 0
        order by batch_id, idx for update skip locked
      ),
      woken as (
        update batch_items as item set not_before = clock_timestamp()
        from waiting w where item.batch_id = w.batch_id and item.idx = w.idx and item.state = 'available'
        returning 1
      )
      select pg_notify($1::text, 'work') from (select count(*) as n from woken) as all_woken where n > 0`,
    values: [CHANNELS.wake],
  });
}
