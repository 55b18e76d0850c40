-- The list of message batches sorts by creation; ids of different replicas need not.
create index batches_of_anthropic on batches (owner, created_at desc, id desc) where surface = 'anthropic';
