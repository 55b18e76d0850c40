-- Usage events: one an item, written by the statement that makes the item final. What is the same for every item of a
-- batch stands once in usage_attributions, what few routes share stands once in usage_routes: an event stays narrow.

create table usage_attributions (
  batch_id uuid primary key,
  surface text not null,
  owner text not null,
  policy text,
  project text,
  team text,
  principal_kind text,
  principal_id text,
  credential_kind text not null,
  credential_id text not null,
  created_at timestamptz not null
);
create index usage_attributions_by_owner on usage_attributions (owner, batch_id);

-- id: md5 of the route's canonical JSON, so that writers need no look-up.
create table usage_routes (
  id uuid primary key,
  requested_model text,
  model text,
  provider text,
  host text,
  host_key text,
  adapter text,
  pricing text,
  resolved_via text
);

-- The order of the columns is that of their use: reports read the first of a million rows, and nothing of a row is reached
-- without passing what stands before it.
create table usage_events (
  batch_id uuid not null,
  batch_idx integer not null,
  duration_ms integer not null,
  -- Milliseconds, as they are shown: what reads as sorted by (ts, request_id) is sorted so, and cursors are exact.
  ts timestamptz(3) not null,
  status smallint not null,
  attempts smallint not null,
  -- Milliseconds after started_at.
  response_start_ms integer,
  started_at timestamptz,
  route uuid,
  cost_nanos bigint,
  tokens_input bigint,
  tokens_output bigint,
  tokens_cache_read bigint,
  tokens_cache_creation bigint,
  tokens_cache_creation_5m bigint,
  tokens_cache_creation_1h bigint,
  tokens_reasoning bigint,
  tokens_audio_input bigint,
  tokens_audio_output bigint,
  tokens_accepted_prediction bigint,
  tokens_rejected_prediction bigint,
  tokens_server_tool_use bigint,
  error_kind text,
  finish_reason text,
  response_end_ms integer,
  error_message text,
  instance text,
  cost_breakdown jsonb,
  primary key (batch_id, batch_idx)
) partition by range (batch_id);

-- Figures group by functions of these two. With their real numbers of values the planner, once someone has run ANALYZE on
-- the whole table, expects a group for nearly every event, and no longer counts in parallel.
alter table usage_events alter column ts set (n_distinct_inherited = 1000);
alter table usage_events alter column duration_ms set (n_distinct_inherited = 1000);

create index usage_events_by_time on usage_events (ts, batch_id, batch_idx);

-- Catches what no weekly partition holds; normally empty.
create table usage_events_default partition of usage_events default;

-- The smallest UUIDv7 of a moment: batch ids are UUIDv7, so ranges of batch_id are ranges of time.
create function uuidv7_floor(at timestamptz) returns uuid language sql immutable strict parallel safe as $$
  select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- Creates the partitions of this week and the next `ahead` weeks (Monday to Monday, UTC). Attached rather than created in
-- place: that locks readers and writers of the other partitions out for no moment. What the default partition caught
-- while there was no better place moves over: else the week could never be attached.
create function ensure_usage_partitions(ahead integer) returns void language plpgsql as $$
declare
  first_day timestamptz;
  part text;
  low uuid;
  high uuid;
begin
  perform pg_advisory_xact_lock(hashtext('usage_partitions'));
  for n in 0..ahead loop
    first_day := (date_trunc('week', clock_timestamp() at time zone 'UTC') + n * interval '7 days') at time zone 'UTC';
    part := 'usage_events_' || to_char(first_day at time zone 'UTC', 'YYYYMMDD');
    continue when to_regclass(part) is not null;
    low := uuidv7_floor(first_day);
    high := uuidv7_floor(first_day + interval '7 days');
    execute format('create table %I (like usage_events including defaults including constraints including indexes)', part);
    lock table usage_events_default in access exclusive mode;
    execute format('with moved as (delete from usage_events_default where batch_id >= %L and batch_id < %L returning *)
      insert into %I select * from moved', low, high, part);
    execute format('alter table usage_events attach partition %I for values from (%L) to (%L)', part, low, high);
  end loop;
end
$$;

-- Drops the partitions whose last possible batch is older than `keep_days`, and what else is kept of batches as old;
-- gives how many partitions. Routes stay: they are few, and writers remember which ones are stored.
create function drop_usage_partitions(keep_days integer) returns integer language plpgsql as $$
declare
  part record;
  dropped integer := 0;
  oldest uuid := uuidv7_floor(
    (date_trunc('week', (clock_timestamp() at time zone 'UTC') - keep_days * interval '1 day')) at time zone 'UTC');
begin
  for part in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'usage_events'::regclass and c.relname ~ '^usage_events_[0-9]{8}$'
  loop
    if uuidv7_floor((to_date(right(part.relname, 8), 'YYYYMMDD') + 7)::timestamp at time zone 'UTC') <= oldest then
      execute format('drop table %I', part.relname);
      dropped := dropped + 1;
    end if;
  end loop;
  delete from usage_events_default where batch_id < oldest;
  delete from usage_attributions a where a.batch_id < oldest
    and not exists (select 1 from batches b where b.id = a.batch_id and b.completed_at is null);
  return dropped;
end
$$;

select ensure_usage_partitions(2);
