-- Breakers of host keys and the counters of key selection. A closed breaker has no row: the table is what replicas read
-- once a second while they work, and it is empty when all is well. Keys are named by a hash of their value, so that a
-- rotated value starts closed; the value itself is never here.

create table breakers (
  breaker_key text not null,
  -- Empty: the breaker of the key. Else the 60 s back-off of one model on it after a 403.
  model text not null default '',
  reason text not null,
  step smallint not null default 0,
  opened_at timestamptz not null default clock_timestamp(),
  -- Null: until an admin resets it (a 401).
  open_until timestamptz,
  -- The one half-open call that is let through, and until when it counts as under way.
  probe_id uuid,
  probe_until timestamptz,
  constraint breaker_reason_known check (reason in ('auth', 'forbidden', 'rate_limit', 'server_error', 'network')),
  constraint breaker_auth_has_no_end check ((reason = 'auth') = (open_until is null)),
  constraint breaker_forbidden_is_of_a_model check ((reason = 'forbidden') = (model <> '')),
  constraint breaker_probe_has_end check ((probe_id is null) = (probe_until is null)),
  constraint breaker_step_in_range check (step between 0 and 7),
  primary key (breaker_key, model)
) with (fillfactor = 50);

-- Round-robin: the next turn of a policy over one list of keys.
create table selection_turns (
  policy_id text not null,
  scope text not null,
  next_turn bigint not null,
  primary key (policy_id, scope)
) with (fillfactor = 50);

-- Least-recently-used: when a policy last drew a key.
create table selection_stamps (
  policy_id text not null,
  host_key text not null,
  used_at timestamptz not null,
  primary key (policy_id, host_key)
) with (fillfactor = 50);
