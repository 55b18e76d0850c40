-- What the progress of a batch is read from, without a walk over its items.

-- As WaitReason in lib/model/batch.ts, in the same order. Those that nothing sets yet are there for releases to come.
create type wait_reason as enum ('paused', 'scheduled', 'no_worker', 'storage_full', 'budget', 'rate_limit', 'no_credit',
  'key_breaker', 'host_down', 'host_paused', 'provider_job', 'provider_queue_full', 'retry_pause', 'fair_share', 'slots');

-- Why a released item waits, as its worker decided. Null on items that were never released: they cost no byte more. The
-- values stay while the item runs again, so that `waits_since` is the time since which this reason holds it up.
alter table batch_items
  add column wait_reason wait_reason,
  add column wait_text text,
  -- For the administrator alone.
  add column wait_host_key text,
  add column waits_since timestamptz,
  -- Of item 0 alone, which is in the first claim of its batch: the time of that claim.
  add column started_at timestamptz;

-- Final items by state. They add up to total_items - open_items unless a replica of the previous release has recorded some
-- of them: then the items are counted.
alter table batches
  add column completed_items integer not null default 0,
  add column discarded_items integer not null default 0,
  add column cancelled_items integer not null default 0;

alter table workers
  -- Null: a replica of the previous release, whose slots are not known.
  add column slots integer,
  -- It lives for one invocation on Lambda.
  add column invocation boolean not null default false,
  -- Since when the payload store or the database refuses what it writes.
  add column blocked_since timestamptz,
  -- The batches of which its last claim left items because slots went to other batches.
  add column passed_over uuid[] not null default '{}';

-- When the last worker with slots ended its lease: its row is gone.
create table worker_ends (
  invocation boolean primary key,
  ended_at timestamptz not null
);
