import type { Db } from '../db/database.ts';
import { CHANNELS } from '../queue/postgres.sql.ts';

// Every statement below is a transaction of its own and turns the wait for the disk off in it: a crash of Postgres may
// forget the last moments of breakers and turns. The clock is read once, beside that.

/** A breaker that is not closed, or a (key, model) that rests. Milliseconds count from the moment of the read. */
export interface BreakerRow {
  breaker_key: string;
  /** Empty for the key's own breaker. */
  model: string;
  reason: 'auth' | 'forbidden' | 'rate_limit' | 'server_error' | 'network';
  step: number;
  /** Null without end; not above 0 when half-open. */
  open_for_ms: number | null;
  /** Null when no probe was let through; not above 0 when its time is over. */
  probe_for_ms: number | null;
}

/** All breakers that are not closed. Models that have rested are left out. */
export async function readBreakers(db: Db): Promise<BreakerRow[]> {
  const result = await db.query<BreakerRow>({
    name: 'read_breakers',
    text: `
      with t as materialized (select clock_timestamp() as now)
      select breaker_key, model, reason, step,
        extract(epoch from open_until - t.now)::float8 * 1000 as open_for_ms,
        extract(epoch from probe_until - t.now)::float8 * 1000 as probe_for_ms
      from breakers, t
      where model = '' or open_until > t.now`,
    values: [],
  });
  return result.rows;
}

/** One breaker's rows for an admin; times are absolute. */
export interface BreakerDetailRow {
  model: string;
  reason: BreakerRow['reason'];
  step: number;
  open_until: Date | null;
  half_open: boolean;
}

/** The rows of one key: its breaker if it is not closed, and the models that rest. */
export async function readBreaker(db: Db, breakerKey: string): Promise<BreakerDetailRow[]> {
  const result = await db.query<BreakerDetailRow>({
    name: 'read_breaker',
    text: `
      with t as materialized (select clock_timestamp() as now)
      select model, reason, step, open_until, coalesce(open_until <= t.now, false) as half_open
      from breakers, t
      where breaker_key = $1::text and (model = '' or open_until > t.now)
      order by model`,
    values: [breakerKey],
  });
  return result.rows;
}

/** A failed call: `ageMs` ago it was sent. */
export interface FailedCall {
  breakerKey: string;
  ageMs: number;
  /** The probe that it was; null for any other call. */
  probeId: string | null;
}

/**
 * A failure that backs off: one step further, unless a 401 holds the breaker or the call was sent before it half-opened.
 * Mirrors `nextBreaker` (lib/keypool/breaker.ts), to the step.
 */
export async function recordBackoff(db: Db, call: FailedCall, reason: 'server_error' | 'network'): Promise<void> {
  await db.query({
    name: 'record_backoff',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      insert into breakers as b (breaker_key, reason, step, opened_at, open_until)
      select $1::text, $2::text, 1, t.now, t.now + interval '1 second' from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason,
        step = least(b.step + 1, 7),
        opened_at = excluded.opened_at,
        open_until = greatest(b.open_until, excluded.opened_at + least(60, 2 ^ b.step) * interval '1 second'),
        probe_id = null,
        probe_until = null
      where b.reason <> 'auth'
        and (b.probe_id = $4::uuid or b.open_until <= excluded.opened_at - $3::float8 * interval '1 millisecond')`,
    values: [call.breakerKey, reason, call.ageMs, call.probeId],
  });
}

/** A 429 that names its time: open for it, from now. Of calls sent while open only a later end (by 1 s) counts. */
export async function recordRetryAfter(db: Db, call: FailedCall, retryAfterMs: number): Promise<void> {
  await db.query({
    name: 'record_retry_after',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      insert into breakers as b (breaker_key, reason, step, opened_at, open_until)
      select $1::text, 'rate_limit', 0, t.now, t.now + $2::float8 * interval '1 millisecond' from t
      on conflict (breaker_key, model) do update set
        reason = excluded.reason,
        opened_at = excluded.opened_at,
        open_until = greatest(b.open_until, excluded.open_until),
        probe_id = null,
        probe_until = null
      where b.reason <> 'auth'
        and (b.probe_id = $4::uuid or b.open_until <= excluded.opened_at - $3::float8 * interval '1 millisecond'
          or excluded.open_until > b.open_until + interval '1 second')`,
    values: [call.breakerKey, retryAfterMs, call.ageMs, call.probeId],
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

/** A 403: the model rests on this key for 60 s. Rows of the key that have rested for an hour go with it. */
export async function recordForbidden(db: Db, breakerKey: string, model: string, ageMs: number): Promise<void> {
  await db.query({
    name: 'record_forbidden',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true)),
      old as (
        delete from breakers using t
        where breaker_key = $1::text and model <> '' and model <> $2::text and open_until < t.now - interval '1 hour'
      )
      insert into breakers as b (breaker_key, model, reason, opened_at, open_until)
      select $1::text, $2::text, 'forbidden', t.now, t.now + interval '60 seconds' from t
      on conflict (breaker_key, model) do update set opened_at = excluded.opened_at, open_until = excluded.open_until
      where b.open_until <= excluded.opened_at - $3::float8 * interval '1 millisecond'`,
    values: [breakerKey, model, ageMs],
  });
}

/** A success that was seen `ageMs` ago: closes the breaker, unless it opened since or a 401 holds it. */
export async function closeBreaker(db: Db, breakerKey: string, ageMs: number): Promise<void> {
  await db.query({
    name: 'close_breaker',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      delete from breakers using t
      where breaker_key = $1::text and model = '' and reason <> 'auth'
        and opened_at <= t.now - $2::float8 * interval '1 millisecond'`,
    values: [breakerKey, ageMs],
  });
}

/** Takes the one probe of a half-open breaker for `leaseMs`; false when it is not half-open or the probe is taken. */
export async function takeProbe(db: Db, breakerKey: string, probeId: string, leaseMs: number): Promise<boolean> {
  const result = await db.query({
    name: 'take_probe',
    text: `
      with t as materialized (select clock_timestamp() as now, set_config('synchronous_commit', 'off', true))
      update breakers set probe_id = $2::uuid, probe_until = t.now + $3::float8 * interval '1 millisecond'
      from t
      where breaker_key = $1::text and model = '' and open_until <= t.now
        and (probe_until is null or probe_until <= t.now)`,
    values: [breakerKey, probeId, leaseMs],
  });
  return result.rowCount === 1;
}

/** Returns a probe whose call said nothing about the key. */
export async function releaseProbe(db: Db, breakerKey: string, probeId: string): Promise<void> {
  await db.query({
    name: 'release_probe',
    text: `
      with t as materialized (select set_config('synchronous_commit', 'off', true))
      update breakers set probe_id = null, probe_until = null from t
      where breaker_key = $1::text and model = '' and probe_id = $2::uuid`,
    values: [breakerKey, probeId],
  });
}

/**
 * Closes everything of a key, its resting models too, and tells the replicas (`lib/queue/postgres.ts` listens). Durable:
 * an admin asked for it.
 */
export async function deleteBreakers(db: Db, breakerKey: string): Promise<void> {
  await db.query({
    name: 'delete_breakers',
    text: `
      with gone as (delete from breakers where breaker_key = $1::text)
      select pg_notify($2::text, '')`,
    values: [breakerKey, CHANNELS.breakers],
  });
}

/** Turns wanted over one list of keys. */
export interface TurnsWanted {
  policyId: string;
  scope: string;
  count: number;
}

/** Draws `count` consecutive turns for each entry; returns the first of them, in the order of `wanted`. */
export async function drawTurns(db: Db, wanted: readonly TurnsWanted[]): Promise<number[]> {
  const result = await db.query<{ policy_id: string; scope: string; next_turn: number }>({
    name: 'draw_turns',
    text: `
      with t as materialized (select set_config('synchronous_commit', 'off', true)),
      wanted as (
        select w.* from t, unnest($1::text[], $2::text[], $3::bigint[]) as w (policy_id, scope, count)
        order by w.policy_id, w.scope
      )
      insert into selection_turns as s (policy_id, scope, next_turn)
      select policy_id, scope, count from wanted
      on conflict (policy_id, scope) do update set next_turn = s.next_turn + excluded.next_turn
      returning policy_id, scope, next_turn`,
    values: [wanted.map((w) => w.policyId), wanted.map((w) => w.scope), wanted.map((w) => w.count)],
  });
  const next = new Map(result.rows.map((row) => [`${row.policy_id}\n${row.scope}`, row.next_turn]));
  return wanted.map((w) => (next.get(`${w.policyId}\n${w.scope}`) ?? w.count) - w.count);
}

/**
 * Draws `count` keys, the longest unused first and round again, and stamps them. Returns all of `hostKeys` in that order:
 * never used ones first, as listed. Locked rows are read as they are after the wait, so replicas take turns.
 */
export async function drawLeastRecentlyUsed(
  db: Db,
  policyId: string,
  hostKeys: readonly string[],
  count: number,
): Promise<string[]> {
  const result = await db.query<{ host_key: string }>({
    name: 'draw_least_recently_used',
    text: `
      with t as materialized (select set_config('synchronous_commit', 'off', true)),
      used as materialized (
        select s.host_key, s.used_at from selection_stamps s, t
        where s.policy_id = $1::text and s.host_key = any ($2::text[])
        order by s.host_key
        for update of s
      ),
      ranked as materialized (
        select k.host_key, row_number() over (order by used.used_at nulls first, k.place) - 1 as rank
        from unnest($2::text[]) with ordinality as k (host_key, place)
        left join used on used.host_key = k.host_key
      ),
      now as materialized (select clock_timestamp() as now, count(*) as locked from used),
      stamped as (
        insert into selection_stamps as s (policy_id, host_key, used_at)
        select $1::text, ranked.host_key, now.now
          -- The place of the key's last turn among the count drawn: later turns are younger.
          + (ranked.rank + cardinality($2::text[]) * ((($3::bigint - 1) - ranked.rank) / cardinality($2::text[])))
            * interval '1 microsecond'
        from ranked, now
        where ranked.rank < $3::bigint
        order by ranked.host_key
        on conflict (policy_id, host_key) do update set used_at = excluded.used_at
      )
      select host_key from ranked order by rank`,
    values: [policyId, hostKeys, count],
  });
  return result.rows.map((row) => row.host_key);
}
