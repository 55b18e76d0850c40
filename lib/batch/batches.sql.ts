import { lockName } from '../db/advisory-locks.sql.ts';
import type { Db } from '../db/database.ts';
import type { Attribution, BatchStatus, ItemState } from '../model/batch.ts';
import type { Shape } from '../model/catalog.ts';

/** A batch as a submit makes it. */
export interface NewBatch extends Attribution {
  id: string;
  surface: string;
  shape: Shape;
  totalItems: number;
  inputId: string;
  /** The object that has the items' custom_id values; null on the native surface. */
  customIdsId: string | null;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
  maxAttempts: number;
  onLimit: 'fail' | 'wait';
  /** Counted from the database's clock; null without a window. */
  completionWindowSeconds: number | null;
}

/** A batch as its owner sees it. */
export interface BatchRow {
  id: string;
  owner: string;
  shape: Shape;
  status: BatchStatus;
  total_items: number;
  created_at: Date;
  completed_at: Date | null;
  policy_id: string | null;
  project_id: string | null;
  team_id: string | null;
  principal_kind: string | null;
  principal_id: string | null;
  credential_kind: string;
  credential_id: string;
  input_id: string;
  /** Id of the results document and of its index, once the batch was compacted. */
  results_id: string | null;
}

/** How many items are in each state; only states that occur. */
export type StateCounts = Partial<Record<ItemState, number>>;

const COLUMNS = `b.id, b.owner, b.shape, b.status, b.total_items, b.created_at, b.completed_at, b.policy_id, b.project_id,
    b.team_id, b.principal_kind, b.principal_id, b.credential_kind, b.credential_id, b.input_id, b.results_id`;

// The foreign key of the cursor is checked at the end of the statement, when the batch row is there. The attribution row
// outlives the batch: usage events of a deleted batch still say whose they are.
const INSERT_BATCH = `
  with batch as (
    insert into batches (id, surface, owner, shape, total_items, open_items, input_id, expires_at, policy_id, policy,
      project_id, project, team_id, team, principal_kind, principal_id, credential_kind, credential_id, token_expires_at,
      token_version, anthropic_version, anthropic_beta, max_attempts, on_limit, custom_ids_id)
    values ($1::uuid, $2::text, $3::text, $4::text, $5::int, $5::int, $6::uuid,
      clock_timestamp() + make_interval(secs => $7::float8), $8::text, $9::text, $10::text, $11::text, $12::text, $13::text,
      $14::text, $15::text, $16::text, $17::text, to_timestamp($18::float8 / 1000), $19::int, $20::text, $21::text,
      $22::smallint, $23::text, $24::uuid)
    returning *
  ), attribution as (
    insert into usage_attributions (batch_id, surface, owner, policy, project, team, principal_kind, principal_id,
      credential_kind, credential_id, created_at)
    select id, surface, owner, policy, project, team, principal_kind, principal_id, credential_kind, credential_id,
      created_at
    from batch
  )
  insert into batch_cursors (batch_id, owner, total_items) select id, owner, total_items from batch`;

/** Inserts a batch, all of whose items are open, with its claim cursor and the attribution of its usage events. */
export async function insertBatch(db: Db, batch: NewBatch): Promise<void> {
  await db.query({
    name: 'insert_batch',
    text: INSERT_BATCH,
    values: [
      batch.id,
      batch.surface,
      batch.owner,
      batch.shape,
      batch.totalItems,
      batch.inputId,
      batch.completionWindowSeconds,
      batch.policyId,
      batch.policy,
      batch.projectId,
      batch.project,
      batch.teamId,
      batch.team,
      batch.principalKind,
      batch.principalId,
      batch.credentialKind,
      batch.credentialId,
      batch.tokenExpiresAt,
      batch.tokenVersion,
      batch.anthropicVersion,
      batch.anthropicBeta,
      batch.maxAttempts,
      batch.onLimit,
      batch.customIdsId,
    ],
  });
}

/** Look-ups name surface, owner and id together: another's batch and one that never was are the same absence. */
export interface BatchKey {
  surface: string;
  owner: string;
  id: string;
}

const FIND_BATCH = `
  select ${COLUMNS} from batches b where b.id = $1::uuid and b.owner = $2::text and b.surface = $3::text`;

/** The batch without its items, or null. */
export async function findBatch(db: Db, key: BatchKey): Promise<BatchRow | null> {
  const values = [key.id, key.owner, key.surface];
  const { rows } = await db.query<BatchRow>({ name: 'find_batch', text: FIND_BATCH, values });
  return rows[0] ?? null;
}

/** The counts of batch `b`, in the order of the states: as they were frozen, or (lazily) counted from the item rows. */
const COUNTS = `coalesce(b.final_counts, (
    select json_object_agg(g.state, g.n)
    from (select i.state, count(*) as n from batch_items i where i.batch_id = b.id group by i.state order by i.state) g
  )) as counts`;

const FIND_BATCH_WITH_COUNTS = `
  select ${COLUMNS}, ${COUNTS}
  from batches b
  where b.id = $1::uuid and b.owner = $2::text and b.surface = $3::text`;

/** The batch and its counts, of one snapshot; null if it does not exist. */
export async function findBatchWithCounts(
  db: Db,
  key: BatchKey,
): Promise<{ batch: BatchRow; counts: StateCounts } | null> {
  const values = [key.id, key.owner, key.surface];
  const text = FIND_BATCH_WITH_COUNTS;
  const { rows } = await db.query<BatchRow & { counts: StateCounts }>({ name: 'find_batch_with_counts', text, values });
  return rows[0] ? { batch: rows[0], counts: rows[0].counts } : null;
}

// One letter an item in one value: as rows, the states of 50,000 items would take the driver ten times as long. The
// subquery's order is what the aggregate sees; its own `order by` would sort again on Postgres before 16.
const FIND_BATCH_WITH_STATES = `
  select ${COLUMNS}, s.states
  from batches b cross join lateral (
    select string_agg(o.letter, '') as states from (
      select case i.state when 'available' then 'a' when 'running' then 'r' when 'completed' then 'c'
        when 'discarded' then 'd' when 'cancelled' then 'x' end as letter
      from batch_items i where i.batch_id = b.id order by i.idx
    ) o
  ) s
  where b.id = $1::uuid and b.owner = $2::text and b.surface = $3::text`;

/** The item states that the letters of `states` stand for. */
export const STATE_LETTERS: Readonly<Record<string, ItemState>> = {
  a: 'available',
  r: 'running',
  c: 'completed',
  d: 'discarded',
  x: 'cancelled',
};

/** The batch and the state of each item, one letter each in idx order, of one snapshot; null if it does not exist. */
export async function findBatchWithStates(db: Db, key: BatchKey): Promise<{ batch: BatchRow; states: string } | null> {
  const values = [key.id, key.owner, key.surface];
  const text = FIND_BATCH_WITH_STATES;
  const { rows } = await db.query<BatchRow & { states: string }>({ name: 'find_batch_with_states', text, values });
  return rows[0] ? { batch: rows[0], states: rows[0].states } : null;
}

export interface ListedBatch {
  id: string;
  status: BatchStatus;
  shape: Shape;
  total_items: number;
  created_at: Date;
  completed_at: Date | null;
  counts: StateCounts;
}

const LIST_BATCHES = `
  select b.id, b.status, b.shape, b.total_items, b.created_at, b.completed_at, ${COUNTS}
  from batches b
  where b.owner = $1::text and b.surface = $2::text and ($3::uuid is null or b.id < $3::uuid)
  order by b.id desc limit $4::int`;

/** At most `limit` batches, newest first (ids sort by time of creation), from below the id `after`. */
export async function listBatches(
  db: Db,
  page: { owner: string; surface: string; after: string | null; limit: number },
): Promise<ListedBatch[]> {
  const values = [page.owner, page.surface, page.after, page.limit];
  return (await db.query<ListedBatch>({ name: 'list_batches', text: LIST_BATCHES, values })).rows;
}

// Usage events, their attribution and the idempotency row stay.
const DELETE_BATCH = `
  with gone as (
    delete from batches
    where id = $1::uuid and owner = $2::text and surface = $3::text and completed_at is not null
    returning id, input_id, results_id
  ), items as (
    delete from batch_items i using gone g where i.batch_id = g.id
  ), refs as (
    delete from segment_refs r using gone g where r.batch_id = g.id
  )
  select input_id, results_id from gone`;

/** Deletes a finished batch and returns its objects; null if it does not exist or is not finished. */
export async function deleteBatch(
  db: Db,
  key: BatchKey,
): Promise<{ input_id: string; results_id: string | null } | null> {
  const values = [key.id, key.owner, key.surface];
  const { rows } = await db.query<{ input_id: string; results_id: string | null }>({
    name: 'delete_batch',
    text: DELETE_BATCH,
    values,
  });
  return rows[0] ?? null;
}

/** Makes this owner's submits go one by one until the transaction ends, so that a limit counts each of them. */
export function lockOwner(tx: Db, owner: string): Promise<void> {
  return lockName(tx, `submit ${owner}`);
}

const PENDING_ITEMS = `
  select coalesce(sum(open_items), 0)::bigint as pending from batches where owner = $1::text and completed_at is null`;

/** Unfinished items of an owner, over all surfaces. */
export async function pendingItems(db: Db, owner: string): Promise<number> {
  const { rows } = await db.query<{ pending: number }>({ name: 'pending_items', text: PENDING_ITEMS, values: [owner] });
  return rows[0]!.pending;
}
