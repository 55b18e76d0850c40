-- The list of message batches pages by id alone: the place of a batch that was deleted is known by its id, and by nothing else.
create index batches_of_anthropic_by_id on batches (owner, id) where surface = 'anthropic';
drop index batches_of_anthropic;
