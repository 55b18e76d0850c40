-- Bodies that come by a way of their own: announced first, then sent to a signed URL, then used by one submit. The bytes
-- are an object of kind `upload` with the same id. A row that was used stays for a while, so that a second use is told
-- apart from an unknown upload and a repeated submit gets its first answer.

create table uploads (
  id uuid primary key,
  owner text not null,
  bytes bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null default clock_timestamp() + interval '1 hour',
  batch_id uuid,
  sha256 bytea,
  total_items integer,
  constraint upload_has_bytes check (bytes > 0),
  constraint upload_used_is_whole check (
    (batch_id is null) = (sha256 is null) and (batch_id is null) = (total_items is null))
);
create index uploads_by_creation on uploads (created_at);

-- What the URLs of the file store are signed with: the same for all replicas, 244 random bits.
create table upload_secret (
  only_row boolean primary key default true,
  secret bytea not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()),
  constraint upload_secret_one_row check (only_row)
);
insert into upload_secret default values;
