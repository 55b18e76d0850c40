-- Breakers of 5xx and broken connections are those of a (key, model). A key keeps its own for what concerns the key:
-- 401, no credit, a long Retry-After. A replica of the previous release beside this one takes an open breaker of a model
-- for one of the key, and writes breakers of keys for 5xx: both are understood, and both end by themselves.

alter table breakers
  drop constraint breaker_reason_known,
  drop constraint breaker_forbidden_is_of_a_model,
  add constraint breaker_reason_known
    check (reason in ('auth', 'account', 'forbidden', 'rate_limit', 'server_error', 'network')),
  add constraint breaker_reason_fits_scope check (case
    when reason in ('auth', 'account', 'rate_limit') then model = ''
    when reason = 'forbidden' then model <> ''
    else true end),
  -- The owner of the item whose call opened the breaker last, or took its last probe: the next probe is another's first.
  add column last_owner text;

-- The failures that may open the breaker of a (key, model): entries of three arrays of one length, at most three items
-- that failed last and two batches that called last (idx -1). Written by failures only, and deleted by the next success.
create table breaker_failures (
  breaker_key text not null,
  model text not null,
  batches uuid[] not null,
  idxs integer[] not null,
  seen_at timestamptz[] not null,
  recorded_at timestamptz not null,
  constraint breaker_failures_are_entries
    check (cardinality(batches) = cardinality(idxs) and cardinality(idxs) = cardinality(seen_at)),
  primary key (breaker_key, model)
) with (fillfactor = 50);

-- The first 12 hex characters of the key that the item failed on with a 5xx or a broken connection; '*' when there were two.
alter table batch_items add column failed_key text;
