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

create table usage_events (
  batch_id uuid not null,
  batch_idx integer not null,
  ts timestamptz not null,
  status smallint not null,
  attempts smallint not null,
  duration_ms integer not null,
  started_at timestamptz,
  -- Milliseconds after started_at.
  response_start_ms integer,
  response_end_ms integer,
  error_kind text,
  error_message text,
  finish_reason text,
  route uuid,
  instance text,
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
  cost_nanos bigint,
  cost_breakdown jsonb,
  primary key (batch_id, batch_idx)
) partition by range (batch_id);

create index usage_events_by_time on usage_events (ts, batch_id, batch_idx);

-- Catches what no weekly partition holds; normally empty.
create table usage_events_default partition of usage_events default;

-- The smallest UUIDv7 of a moment: batch ids are UUIDv7, so ranges of batch_id are ranges of time.
create function uuidv7_floor(at timestamptz) returns uuid language sql immutable strict as $$
  select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '00000000000000000000')::uuid
$$;

-- Creates the partitions of this week and the next `ahead` weeks (Monday to Monday, UTC).
create function ensure_usage_partitions(ahead integer) returns void language plpgsql as $$
declare
  first_day timestamptz;
  part text;
begin
  for n in 0..ahead loop
    first_day := (date_trunc('week', clock_timestamp() at time zone 'UTC') + n * interval '7 days') at time zone 'UTC';
    part := 'usage_events_' || to_char(first_day at time zone 'UTC', 'YYYYMMDD');
    if to_regclass(part) is null then
      execute format('create table %I partition of usage_events for values from (%L) to (%L)',
        part, uuidv7_floor(first_day), uuidv7_floor(first_day + interval '7 days'));
    end if;
  end loop;
end
$$;

-- Drops the partitions whose last possible batch is older than `keep_days`; gives how many.
create function drop_usage_partitions(keep_days integer) returns integer language plpgsql as $$
declare
  part record;
  dropped integer := 0;
begin
  for part in
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'usage_events'::regclass and c.relname ~ '^usage_events_[0-9]{8}$'
  loop
    if to_date(right(part.relname, 8), 'YYYYMMDD') + 7 + keep_days < (clock_timestamp() at time zone 'UTC')::date then
      execute format('drop table %I', part.relname);
      dropped := dropped + 1;
    end if;
  end loop;
  return dropped;
end
$$;

select ensure_usage_partitions(2);
