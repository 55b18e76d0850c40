-- Batches, items, leases and the catalogue version. Constraints are named: they carry the invariants of
-- docs/state-machine.md, and errors name them.

create type item_state as enum ('available', 'running', 'completed', 'discarded', 'cancelled');

create table batches (
  id uuid primary key,
  surface text not null default 'relay',
  owner text not null,
  shape text not null,
  status text not null default 'queued',
  total_items integer not null,
  open_items integer not null,
  created_at timestamptz not null default clock_timestamp(),
  completed_at timestamptz,
  cancelled_at timestamptz,
  expires_at timestamptz,
  input_id uuid not null,
  results_id uuid,
  policy_id text,
  policy text,
  project_id text,
  project text,
  team_id text,
  team text,
  principal_kind text,
  principal_id text,
  credential_kind text not null,
  credential_id text not null,
  token_expires_at timestamptz,
  token_version integer,
  anthropic_version text,
  anthropic_beta text,
  max_attempts smallint not null default 1,
  on_limit text not null default 'fail',
  constraint batch_status_known check (status in ('queued', 'cancelled')),
  constraint batch_cancelled_has_time check ((status = 'cancelled') = (cancelled_at is not null)),
  constraint batch_open_items_in_range check (open_items between 0 and total_items),
  constraint batch_completed_iff_no_open_items check ((completed_at is not null) = (open_items = 0)),
  constraint batch_results_only_when_completed check (results_id is null or completed_at is not null)
-- A batch is updated by every group commit of its items: all but the last of these updates are HOT while its page has
-- room, and the next reader prunes what they leave.
) with (fillfactor = 50);

create index batches_by_owner on batches (owner, surface, id desc);
-- Small: only batches in work. Sweep, rescue and planning walk it instead of all batches ever.
create index batches_open on batches (id) where completed_at is null;
create index batches_uncompacted on batches (id) where completed_at is not null and results_id is null;
-- The orphan sweep asks by object id.
create index batches_by_input on batches (input_id);
create index batches_by_results on batches (results_id) where results_id is not null;
create index batches_by_completion on batches (completed_at) where completed_at is not null;

-- Fresh items are claimed in idx order from this cursor, so that a claim never walks finished or locked heads of a
-- batch. The row goes when the last fresh item was claimed, or with a cancel.
create table batch_cursors (
  batch_id uuid primary key references batches (id) on delete cascade,
  owner text not null,
  next_idx integer not null default 0,
  total_items integer not null
) with (fillfactor = 50);

-- No foreign key: its trigger would run once for each of 50,000 inserted items, and a delete names the items itself.
create table batch_items (
  batch_id uuid not null,
  idx integer not null,
  state item_state not null default 'available',
  claim_no integer not null default 0,
  input_offset bigint not null,
  input_length integer not null,
  input_crc bigint not null,
  worker_id uuid,
  -- Set while a released item waits (to a past moment when it may run at once); null on fresh, running and final ones.
  not_before timestamptz,
  -- Upstream calls made, and rounds of calls spent (a round is what one run of an item may try).
  attempts smallint not null default 0,
  rounds smallint not null default 0,
  losses smallint not null default 0,
  load_failures smallint not null default 0,
  load_failed_at timestamptz,
  waited_ms integer not null default 0,
  segment_id uuid,
  output_offset integer,
  output_length integer,
  output_crc bigint,
  error text,
  finalized_at timestamptz,
  constraint item_final_iff_finalized check ((state in ('completed', 'discarded', 'cancelled')) = (finalized_at is not null)),
  constraint item_completed_has_span check (state <> 'completed' or (segment_id is not null and output_length is not null)),
  constraint item_open_has_no_span check (state in ('completed', 'discarded') or segment_id is null),
  constraint item_discarded_has_error check ((state = 'discarded') = (error is not null)),
  constraint item_running_has_worker check (state <> 'running' or worker_id is not null),
  constraint item_waiting_is_available check (not_before is null or state = 'available'),
  primary key (batch_id, idx)
) with (
  -- A row is updated twice, by its claim and by its outcome, and nothing indexed changes. With two thirds of a page left
  -- free both updates stay in their page (HOT) and touch no index. Measured over 100,000 items:
  --   fillfactor   HOT     heap   index    WAL
  --          100    6 %   278 B    81 B  1346 B an item
  --           70   53 %   341 B    81 B  1179 B
  --           45   88 %   341 B    59 B  1050 B
  --           35  100 %   316 B    41 B  1004 B
  --           30  100 %   372 B    41 B  1007 B
  fillfactor = 35,
  -- Readers prune what HOT updates leave: without any vacuum the table is as large, with 675 dead rows after 200,000
  -- updates. Vacuum is left with cancels, retention and freezing; at a twentieth of the table instead of a fifth each run
  -- has little to do, also when the table holds every item that ever ran.
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05
);

-- Released items only: claims find them here without walking their batch.
create index batch_items_released on batch_items (batch_id, not_before, idx) where not_before is not null;

create table segment_refs (
  segment_id uuid not null,
  batch_id uuid not null,
  primary key (segment_id, batch_id)
);
create index segment_refs_by_batch on segment_refs (batch_id);

-- A worker is a lease, in database time.
create table workers (
  id uuid primary key,
  instance text not null,
  started_at timestamptz not null default clock_timestamp(),
  beat_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);

create table idempotency_keys (
  owner text not null,
  surface text not null,
  key text not null,
  body_sha256 bytea not null,
  batch_id uuid not null,
  created_at timestamptz not null default clock_timestamp(),
  primary key (owner, surface, key)
);
create index idempotency_keys_by_age on idempotency_keys (created_at);

-- One row each: what every replica compares itself with.
create table catalog_state (
  only_row boolean primary key default true,
  version bigint not null default 0,
  constraint catalog_state_one_row check (only_row)
);
insert into catalog_state default values;

create table payload_store (
  only_row boolean primary key default true,
  store_id uuid not null,
  constraint payload_store_one_row check (only_row)
);
