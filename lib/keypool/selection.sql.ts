import type { Db } from '../db/database.ts';

// Every statement below is a transaction of its own and turns the wait for the disk off in it: a crash of Postgres may
// forget the last moments of turns.

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
