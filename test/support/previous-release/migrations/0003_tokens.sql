-- Inference tokens. A request is judged from memory: signing keys and revoked ids are loaded with the catalogue, and
-- every change of them raises catalog_state.version in its own transaction.

-- At most one row of each state. The private key is sealed with the master key, `kid` as additional data; the public
-- one is derived from it, so that nobody who can merely write to this table can make a key that verifies.
create table token_signing_keys (
  kid uuid primary key,
  state text not null,
  key_id text not null,
  nonce bytea not null,
  ciphertext bytea not null,
  created_at timestamptz not null default clock_timestamp(),
  constraint token_signing_key_nonce_is_12_bytes check (octet_length(nonce) = 12),
  constraint token_signing_key_state_known check (state in ('current', 'previous')),
  constraint token_signing_key_one_of_each unique (state)
);

-- Every token until it has expired, so that revoking an unknown one can be told from revoking a real one.
create table tokens (
  jti uuid primary key,
  user_id uuid not null,
  issued_at timestamptz not null default clock_timestamp(),
  expires_at timestamptz not null,
  revoked_at timestamptz,
  constraint token_expires_after_issue check (expires_at > issued_at)
);
create index tokens_by_expiry on tokens (expires_at);
create index tokens_revoked on tokens (expires_at) where revoked_at is not null;
