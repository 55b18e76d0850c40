/**
 * Settings of the embedded server, for one replica on one machine: many small commits that update the same few rows.
 * All others keep Postgres' default (`wal_level=replica`, so that base backups work; `synchronous_commit=on`).
 */
export const SETTINGS: Readonly<Record<string, string>> = {
  // Nothing is recorded twice or lost after a power cut: the promise of the service depends on these two.
  fsync: 'on',
  full_page_writes: 'on',
  // The hot tables (open items, limits) fit. One batch of 50,000 items with events outgrows the default of 128MB.
  shared_buffers: '256MB',
  wal_buffers: '16MB',
  // After a checkpoint the next write of each page logs the whole page: fewer checkpoints, less WAL. 2 GB is also the
  // most that a crash recovery must read, some ten seconds.
  max_wal_size: '2GB',
  checkpoint_timeout: '15min',
  // Ten for the pool of a replica and a few for tests, tools and backups.
  max_connections: '100',
  // Statements are short and prepared: to compile them, or to start workers for them, costs more than it saves.
  jit: 'off',
  max_parallel_workers_per_gather: '0',
  // For a local SSD. The default assumes a disk that seeks and leads to scans of whole tables.
  random_page_cost: '1.1',
  // Rows of items and limits are updated several times: vacuum checks often and may work fast enough to keep up.
  autovacuum: 'on',
  autovacuum_naptime: '15s',
  autovacuum_vacuum_cost_limit: '1000',
  timezone: 'UTC',
  log_timezone: 'UTC',
  lc_messages: 'C',
  log_checkpoints: 'off',
  // DETAIL lines quote rows, and rows hold what callers sent.
  log_error_verbosity: 'terse',
};
