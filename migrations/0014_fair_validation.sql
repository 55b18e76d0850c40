-- Validations of input files take turns by owner, and a file is checked once for each endpoint.

-- When an owner's batch was last taken for its validation. The owner without a row, or with the oldest time, is next.
create table validation_turns (
  owner text primary key,
  taken_at timestamptz not null
) with (fillfactor = 50);

alter table openai_batches
  -- The rules that the file was checked by (CHECK_RULES of the service), where this row holds what came of it: the model and
  -- the items of its batch, or the errors. Null: it holds nothing that another batch on the file could use.
  add column check_rules smallint,
  -- Requests of a file that passed, of a batch that failed all the same: its owner had too many items pending.
  add column checked_requests integer,
  add constraint openai_batch_checked_requests_of_failed
    check (checked_requests is null or (final_status = 'failed' and check_rules is not null));

-- Each owner's oldest batch that waits. It replaces the index by id alone.
drop index openai_batches_unvalidated;
create index openai_batches_unvalidated on openai_batches (owner, id) where in_progress_at is null and ended_at is null;
-- Files that are being checked at this moment, or rest after a fault.
create index openai_batches_in_check on openai_batches (object_id, endpoint)
  where lease_until is not null and in_progress_at is null and ended_at is null;
-- Files that were checked.
create index openai_batches_checked on openai_batches (object_id, endpoint) where check_rules is not null;
