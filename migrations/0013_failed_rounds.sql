-- Rounds of an item that ended in a failure of its own making or the upstream's, and when the first of them was recorded. On
-- the SDK surfaces they end an item. Items that are in work when this release starts begin at 0.
alter table batch_items
  add column failed_rounds smallint not null default 0,
  add column failing_since timestamptz;
