-- Who writes the results of a finished batch has it until then, so that replicas do not all write the same ones. Only a
-- matter of work not done twice: the switch to the results is guarded by itself.
alter table batches add column compacting_until timestamptz;
