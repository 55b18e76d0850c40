-- The OpenAI and Anthropic surfaces. Their batches are batches like any other once they run; what only their own wire
-- formats need stands here.

-- The custom_id of each item is payload: an object of its own, one JSON string a line in idx order, read when results are
-- written. Null on the native surface.
alter table batches add column custom_ids_id uuid;
create index batches_by_custom_ids on batches (custom_ids_id) where custom_ids_id is not null;

-- Files of the OpenAI surface. An uploaded file is an `input` object: the items of a batch point straight into it, so it
-- outlives its row for as long as a batch refers to it. What the service writes (output and error files) is `output`.
create table files (
  id uuid primary key,
  owner text not null,
  purpose text not null,
  filename text not null,
  bytes bigint not null,
  object_kind text not null,
  object_id uuid not null,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz,
  constraint file_purpose_known check (purpose in ('batch', 'batch_output')),
  constraint file_object_kind_known check (object_kind in ('input', 'output')),
  constraint file_bytes_not_negative check (bytes >= 0)
);
create index files_by_owner on files (owner, id desc);
create index files_by_object on files (object_id);
create index files_by_expiry on files (expires_at) where expires_at is not null;

-- A batch of the OpenAI surface, from its creation on. The row in `batches`, of the same id, is made by the validation; a
-- batch that does not pass it, or is cancelled before, never gets one. No foreign key for that reason.
create table openai_batches (
  id uuid primary key,
  owner text not null,
  -- As recorded on every batch at its submit; its own columns are filled when the validation has passed.
  attribution jsonb not null,
  endpoint text not null,
  input_file_id uuid not null,
  -- The file's object: the file itself may be deleted meanwhile.
  object_id uuid not null,
  metadata jsonb,
  output_expires_s integer,
  model text,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null default clock_timestamp() + interval '24 hours',
  in_progress_at timestamptz,
  cancelling_at timestamptz,
  ended_at timestamptz,
  final_status text,
  errors jsonb,
  output_file_id uuid,
  error_file_id uuid,
  usage jsonb,
  -- Until then one replica validates it; afterwards another may.
  lease_until timestamptz,
  constraint openai_batch_final_status_known check (final_status in ('completed', 'failed', 'expired', 'cancelled')),
  constraint openai_batch_ended_iff_final check ((ended_at is null) = (final_status is null)),
  constraint openai_batch_errors_iff_failed check ((errors is not null) = (final_status is not distinct from 'failed')),
  constraint openai_batch_failed_never_ran check (final_status is distinct from 'failed' or in_progress_at is null)
);
create index openai_batches_by_owner on openai_batches (owner, created_at desc, id desc);
-- What waits for its validation.
create index openai_batches_unvalidated on openai_batches (id) where in_progress_at is null and ended_at is null;
create index openai_batches_by_object on openai_batches (object_id);
create index openai_batches_by_end on openai_batches (ended_at) where ended_at is not null;
