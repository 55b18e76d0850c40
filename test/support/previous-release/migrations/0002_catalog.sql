-- The catalogue: every kind in one table, its document as written. What must not be in a document stands beside it:
-- hashes of relay keys, ciphertexts of host keys, token versions of users. References between objects are names inside
-- `spec`, checked under the catalogue lock by everyone who writes here.

create table catalog_objects (
  id uuid primary key,
  kind text not null,
  name text not null,
  metadata jsonb not null default '{}',
  spec jsonb not null default '{}',
  -- Set by `apply`, which prunes only what it applied itself.
  applied boolean not null default false,
  created_at timestamptz not null default clock_timestamp(),
  updated_at timestamptz not null default clock_timestamp(),
  constraint catalog_object_name_unique unique (kind, name)
);

create table relay_keys (
  id uuid primary key references catalog_objects (id) on delete cascade,
  -- sha256 hex of the whole plaintext, and its first characters for display.
  hash text not null,
  prefix text not null,
  previous_hash text,
  grace_until timestamptz,
  revoked_at timestamptz,
  -- Deferrable: two keys may swap their values in one statement.
  constraint relay_key_hash_unique unique (hash) deferrable initially immediate,
  constraint relay_key_hash_is_sha256 check (hash ~ '^[0-9a-f]{64}$'),
  constraint relay_key_previous_has_grace check ((previous_hash is null) = (grace_until is null))
);

create table host_key_secrets (
  id uuid primary key references catalog_objects (id) on delete cascade,
  key_id text not null,
  nonce bytea not null,
  ciphertext bytea not null,
  constraint host_key_secret_nonce_is_12_bytes check (octet_length(nonce) = 12)
);

-- Raised to revoke every token of a user that was issued before; no row is version 0.
create table user_token_versions (
  id uuid primary key references catalog_objects (id) on delete cascade,
  version integer not null
);
