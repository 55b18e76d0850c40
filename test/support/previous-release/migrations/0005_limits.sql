-- Rate limits. A decision for a whole claim is one function call, and the only statement of its transaction: it locks
-- the buckets in the order of their ids (so two replicas never deadlock), takes the clock once, decides request by
-- request in order, and writes each bucket back once.
--
-- Times are microseconds since the epoch by clock_timestamp(). Floats are IEEE doubles and follow, operation by
-- operation, the reference in test/support/limits-reference.ts, so both come to the same bits.

create table limit_buckets (
  id uuid primary key,
  -- Level of a token or leaky bucket (how much is taken, not how much is left: a raised amount then holds at once), or
  -- the count of the window that starts at `anchor_us`.
  used double precision not null default 0,
  -- Count of the window before; sliding-window only.
  previous double precision not null default 0,
  anchor_us bigint not null default 0,
  -- From then on the row says no more than a fresh one would, and the sweep may delete it.
  idle_us bigint not null default 0,
  constraint limit_bucket_used_not_negative check (used >= 0),
  constraint limit_bucket_previous_not_negative check (previous >= 0)
) with (fillfactor = 50);

-- One row a running item and concurrency rule; never a counter that can drift. The table is empty again and again, and
-- a plan made in such a moment would read all of it for each item later on: it keeps its pages, look-ups stand in
-- lateral subqueries that cannot become joins, and the functions switch sequential scans off. (Deleting a thousand rows
-- took 190 ms by such a plan, and takes 4 ms.)
create table limit_concurrency (
  bucket_id uuid not null,
  batch_id uuid not null,
  idx integer not null,
  claim_no integer not null,
  -- No item runs longer: from then on the row does not count, whatever became of its worker.
  held_until_us bigint not null,
  primary key (batch_id, idx, claim_no, bucket_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = false);
create index limit_concurrency_by_bucket on limit_concurrency (bucket_id, held_until_us);

-- Creates the buckets that are missing, locks all of them, and only then takes the clock: who decides later sees a
-- later time. p_ids is ascending and distinct. Counts may be lost in a crash (under a second of them), hence no wait
-- for the disk; callers therefore never share a transaction with anything that must last.
create function limit_lock(
  p_ids uuid[],
  out used double precision[], out previous double precision[], out anchors bigint[], out now_us bigint
) language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  loop
    insert into limit_buckets (id)
      select wanted from unnest(p_ids) as wanted
      where not exists (select from limit_buckets b where b.id = wanted)
      order by wanted
      on conflict (id) do nothing;
    select array_agg(l.used order by l.id), array_agg(l.previous order by l.id), array_agg(l.anchor_us order by l.id)
      into used, previous, anchors
      from (select b.id, b.used, b.previous, b.anchor_us from limit_buckets b
            where b.id = any (p_ids) order by b.id for update) as l;
    -- The sweep may have deleted one in between.
    exit when cardinality(used) = cardinality(p_ids);
  end loop;
  now_us := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
end $$;

-- Writes back the buckets marked as changed. (As everywhere here plpgsql, which keeps its plans: an SQL function is
-- planned at every call before Postgres 18.)
create function limit_write(
  p_ids uuid[], p_windows bigint[], p_now bigint,
  p_used double precision[], p_previous double precision[], p_anchors bigint[], p_changed boolean[]
) returns void language plpgsql as $$
begin
  update limit_buckets b
    set used = u.used, previous = u.previous, anchor_us = u.anchor, idle_us = p_now + 2 * u.window_us
    from unnest(p_ids, p_windows, p_used, p_previous, p_anchors, p_changed)
      as u (id, window_us, used, previous, anchor, changed)
    where b.id = u.id and u.changed;
end $$;

-- A bucket's state as it is now. A clock that went back never frees anything.
create function limit_roll(
  p_strategy text, p_amount double precision, p_window bigint, p_now bigint,
  inout used double precision, inout previous double precision, inout anchor bigint
) language plpgsql immutable as $$
declare
  v_start bigint;
begin
  case p_strategy
    -- The same arithmetic: "starts full, needs 1" is "level + 1 <= amount" of what was taken.
    when 'token-bucket', 'leaky-bucket' then
      used := greatest(0, used - greatest(0, p_now - anchor)::double precision * p_amount / p_window);
      anchor := p_now;
    when 'fixed-window', 'sliding-window' then
      v_start := p_now - p_now % p_window;
      if anchor < v_start then
        previous := case when p_strategy = 'sliding-window' and anchor = v_start - p_window then used else 0 end;
        used := 0;
        anchor := v_start;
      end if;
    when 'session-window' then
      if p_now - anchor >= p_window then
        used := 0;
        anchor := p_now;
      end if;
  end case;
end $$;

-- What counts of a rolled bucket: a sliding window weighs the window before by the part of it that still reaches in.
create function limit_current(
  p_strategy text, p_window bigint, p_now bigint, p_used double precision, p_previous double precision, p_anchor bigint
) returns double precision language sql immutable as $$
  select case when p_strategy = 'sliding-window'
    then p_used + p_previous * (1 - least(1, greatest(0, p_now - p_anchor)::double precision / p_window))
    else p_used end;
$$;

-- Seconds until one more request would pass (or, for a token meter, until the count is under the amount), if nothing
-- else happens: rounded up, at least 1. Only asked of a rolled bucket that refuses.
create function limit_wait(
  p_requests boolean, p_strategy text, p_amount double precision, p_window bigint, p_now bigint,
  p_used double precision, p_previous double precision, p_anchor bigint
) returns integer language plpgsql immutable as $$
declare
  -- A request needs one, a token meter must come under its amount by anything at all. The tiny part keeps rounding from
  -- turning a wait of exactly n seconds into n + 1, or into one that ends at the amount; limit_reserve allows twice it.
  v_need double precision := case when p_requests then 1 - 5e-10 else 5e-10 end;
  v_room double precision := p_amount - p_used - v_need;
  v_us double precision;
begin
  case p_strategy
    when 'token-bucket', 'leaky-bucket' then v_us := (p_used + v_need - p_amount) * p_window / p_amount;
    when 'fixed-window', 'session-window' then v_us := p_anchor + p_window - p_now;
    when 'sliding-window' then
      if v_room > 0 then
        v_us := p_window * (1 - v_room / p_previous) - (p_now - p_anchor);
      else
        -- This window is full by itself; in the next one it is the previous, and fades.
        v_us := p_window + p_window * greatest(0, 1 - (p_amount - v_need) / nullif(p_used, 0)) - (p_now - p_anchor);
      end if;
  end case;
  return least(2147483647, greatest(1, ceil(ceil(v_us) / 1000000)))::integer;
end $$;

-- Decides for requests in order. Requests that follow each other with the same rules come as one run: at one instant a
-- bucket simply has room for n more, so a run of a thousand costs what one request costs.
--
-- Buckets: p_ids (ascending, distinct) and what belongs to each. Rule sets: set s is
-- p_members[p_set_ends[s - 1] + 1 .. p_set_ends[s]], positions in p_ids. Runs: p_run_sets and p_run_lengths.
-- Concurrency rows to write for items that pass: the bucket's position, the item's claim, its run and place in it.
-- Gives the instant, and for each run how many passed (the first ones), and for the rest the bucket that refused (the
-- one with the longest wait) and its wait in seconds.
create function limit_reserve(
  p_ids uuid[], p_meters text[], p_strategies text[], p_amounts double precision[], p_windows bigint[],
  p_members integer[], p_set_ends integer[], p_run_sets integer[], p_run_lengths integer[],
  p_gauges integer[], p_batches uuid[], p_idxs integer[], p_claims integer[], p_runs integer[], p_places integer[],
  p_hold_us bigint,
  out at_us bigint, out passed integer[], out refused_by integer[], out retry_s integer[]
) language plpgsql set enable_seqscan = off as $$
declare
  c_buckets constant integer := cardinality(p_ids);
  c_runs constant integer := cardinality(p_run_sets);
  v_used double precision[];
  v_previous double precision[];
  v_anchors bigint[];
  v_room double precision[] := array_fill(0::double precision, array[c_buckets]);
  v_wait integer[] := array_fill(0, array[c_buckets]);
  v_changed boolean[] := array_fill(false, array[c_buckets]);
  v_from integer;
  v_to integer;
  v_n double precision;
  v_rolled record;
  b integer;
begin
  select l.used, l.previous, l.anchors, l.now_us into v_used, v_previous, v_anchors, at_us from limit_lock(p_ids) l;
  for i in 1 .. c_buckets loop
    if p_meters[i] = 'concurrency' then
      v_room[i] := floor(p_amounts[i]) - (select count(*) from limit_concurrency c
        where c.bucket_id = p_ids[i] and c.held_until_us > at_us);
      continue;
    end if;
    v_rolled := limit_roll(
      p_strategies[i], p_amounts[i], p_windows[i], at_us, v_used[i], v_previous[i], v_anchors[i]);
    v_used[i] := v_rolled.used;
    v_previous[i] := v_rolled.previous;
    v_anchors[i] := v_rolled.anchor;
    v_n := p_amounts[i]
      - limit_current(p_strategies[i], p_windows[i], at_us, v_used[i], v_previous[i], v_anchors[i]);
    if p_meters[i] = 'requests' then
      -- A billionth against rounding, so that who waited as told does pass; what it lends stays in the level.
      v_room[i] := floor(v_n + 1e-9);
    else
      v_room[i] := case when v_n > 0 then 'Infinity'::double precision else 0 end;
    end if;
  end loop;

  passed := array_fill(0, array[c_runs]);
  refused_by := passed;
  retry_s := passed;
  for run in 1 .. c_runs loop
    v_to := p_set_ends[p_run_sets[run]];
    v_from := case when p_run_sets[run] = 1 then 1 else p_set_ends[p_run_sets[run] - 1] + 1 end;
    v_n := p_run_lengths[run];
    for m in v_from .. v_to loop
      b := p_members[m];
      if v_room[b] < v_n then v_n := greatest(0, v_room[b]); end if;
    end loop;
    if v_n > 0 then
      passed[run] := v_n;
      for m in v_from .. v_to loop
        b := p_members[m];
        v_room[b] := v_room[b] - v_n;
        if p_meters[b] = 'requests' then
          v_used[b] := v_used[b] + v_n;
          v_changed[b] := true;
        end if;
      end loop;
    end if;
    if v_n < p_run_lengths[run] then
      for m in v_from .. v_to loop
        b := p_members[m];
        continue when v_room[b] >= 1;
        -- A bucket without room stays so for the rest of the call: its wait is worked out once.
        if v_wait[b] = 0 then
          v_wait[b] := case when p_meters[b] = 'concurrency' then 1 else
            limit_wait(p_meters[b] = 'requests', p_strategies[b], p_amounts[b], p_windows[b], at_us,
              v_used[b], v_previous[b], v_anchors[b]) end;
        end if;
        if v_wait[b] > retry_s[run] then
          retry_s[run] := v_wait[b];
          refused_by[run] := b;
        end if;
      end loop;
    end if;
  end loop;

  if cardinality(p_idxs) > 0 then
    -- A repeated reservation of one claim finds its row under the bucket's lock. (`on conflict` would say the same at
    -- three times the price: 8 ms instead of 2.5 for a thousand rows. `is not distinct from` keeps the look-up off the
    -- index by bucket, where it would read every row of the bucket.)
    insert into limit_concurrency (bucket_id, batch_id, idx, claim_no, held_until_us)
      select p_ids[i.gauge], i.batch_id, i.idx, i.claim_no, at_us + p_hold_us
      from unnest(p_gauges, p_batches, p_idxs, p_claims, p_runs, p_places)
        as i (gauge, batch_id, idx, claim_no, run, place)
      where i.place <= passed[i.run]
        and (select c.idx from limit_concurrency c where c.batch_id = i.batch_id and c.idx = i.idx
          and c.claim_no = i.claim_no and c.bucket_id is not distinct from p_ids[i.gauge]) is null;
  end if;
  if true = any (v_changed) then
    perform limit_write(p_ids, p_windows, at_us, v_used, v_previous, v_anchors, v_changed);
  end if;
end $$;

-- Adds token counts to the windows that are current now.
create function limit_charge(
  p_ids uuid[], p_strategies text[], p_windows bigint[], p_counts double precision[]
) returns void language plpgsql as $$
declare
  v_used double precision[];
  v_previous double precision[];
  v_anchors bigint[];
  v_now bigint;
  v_rolled record;
begin
  select l.used, l.previous, l.anchors, l.now_us into v_used, v_previous, v_anchors, v_now from limit_lock(p_ids) l;
  for b in 1 .. cardinality(p_ids) loop
    v_rolled := limit_roll(p_strategies[b], 1, p_windows[b], v_now, v_used[b], v_previous[b], v_anchors[b]);
    v_used[b] := v_rolled.used + p_counts[b];
    v_previous[b] := v_rolled.previous;
    v_anchors[b] := v_rolled.anchor;
  end loop;
  perform limit_write(p_ids, p_windows, v_now, v_used, v_previous, v_anchors,
    array_fill(true, array[cardinality(p_ids)]));
end $$;

-- Gives back p_counts[k] requests that were reserved at p_ats[k] in bucket p_buckets[k]. A window that moved on takes
-- its count with it. Of a level, only what certainly has not drained since is given back: never too much.
create function limit_refund(
  p_ids uuid[], p_strategies text[], p_amounts double precision[], p_windows bigint[],
  p_buckets integer[], p_ats bigint[], p_counts integer[]
) returns void language plpgsql as $$
declare
  v_used double precision[];
  v_previous double precision[];
  v_anchors bigint[];
  v_now bigint;
  v_rolled record;
  b integer;
begin
  select l.used, l.previous, l.anchors, l.now_us into v_used, v_previous, v_anchors, v_now from limit_lock(p_ids) l;
  for i in 1 .. cardinality(p_ids) loop
    v_rolled := limit_roll(p_strategies[i], p_amounts[i], p_windows[i], v_now, v_used[i], v_previous[i], v_anchors[i]);
    v_used[i] := v_rolled.used;
    v_previous[i] := v_rolled.previous;
    v_anchors[i] := v_rolled.anchor;
  end loop;
  for k in 1 .. cardinality(p_buckets) loop
    b := p_buckets[k];
    if p_strategies[b] in ('token-bucket', 'leaky-bucket') then
      v_used[b] := greatest(0, v_used[b] - p_counts[k]
        * greatest(0, 1 - greatest(0, v_now - p_ats[k])::double precision * p_amounts[b] / p_windows[b]));
    elsif p_ats[k] >= v_anchors[b] then
      v_used[b] := greatest(0, v_used[b] - p_counts[k]);
    elsif p_strategies[b] = 'sliding-window' and p_ats[k] >= v_anchors[b] - p_windows[b] then
      v_previous[b] := greatest(0, v_previous[b] - p_counts[k]);
    end if;
  end loop;
  for i in 1 .. cardinality(p_ids) loop
    -- A session without a request has no start: the next request is its first.
    if p_strategies[i] = 'session-window' and v_used[i] = 0 then v_anchors[i] := 0; end if;
  end loop;
  perform limit_write(p_ids, p_windows, v_now, v_used, v_previous, v_anchors,
    array_fill(true, array[cardinality(p_ids)]));
end $$;

-- Deletes the concurrency rows of these claims: in the bucket beside each, or in every bucket without p_buckets. Gives
-- how many. Takes no bucket lock and waits for the disk like any statement: made for the transaction that ends a claim.
create function limit_free(p_buckets uuid[], p_batches uuid[], p_idxs integer[], p_claims integer[])
returns integer language plpgsql set enable_seqscan = off as $$
declare
  v_freed integer;
begin
  delete from limit_concurrency where ctid = any (array(
    select found.tid
    from unnest(p_buckets, p_batches, p_idxs, p_claims) as i (bucket_id, batch_id, idx, claim_no)
    cross join lateral (
      select c.ctid as tid from limit_concurrency c
      where c.batch_id = i.batch_id and c.idx = i.idx and c.claim_no = i.claim_no
        and (i.bucket_id is null or c.bucket_id = i.bucket_id)
      offset 0) as found));
  get diagnostics v_freed = row_count;
  return v_freed;
end $$;
