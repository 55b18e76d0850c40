import { plainArray } from '../../db/arrays.ts';
import type { Db } from '../../db/database.ts';
import { COUNT_DOWN, RECORD_UNSENT } from '../../usage/unsent.sql.ts';
import type { Periods } from '../periods.ts';

/** What a worker is from its start to its end. */
export interface WorkerKind {
  instance: string;
  /** How many items it runs at once; 0: it claims nothing. */
  slots: number;
  /** It lives for one invocation on Lambda. */
  invocation: boolean;
}

/** What a worker says of itself with each heartbeat: why items wait. */
export interface Standing {
  /** The payload store or the database refuses what it writes. */
  blocked: boolean;
  /** The batches of which its last claim left items because slots went to other batches. */
  passedOver: readonly string[];
}

/** Makes the lease of a new worker id. */
export async function insertWorker(db: Db, id: string, { instance, slots, invocation }: WorkerKind): Promise<void> {
  await db.query({
    name: 'insert_worker',
    text: `
      insert into workers (id, instance, slots, invocation) values ($1::uuid, $2::text, $3::int, $4::boolean)
      on conflict (id) do nothing`,
    values: [id, instance, slots, invocation],
  });
}

export interface Heartbeat {
  /** False: the lease was taken; everything this worker still does is in vain. */
  alive: boolean;
  catalogVersion: number;
  /** The database's clock, epoch ms. */
  nowMs: number;
  /** Of the batches asked about, those that are cancelled. */
  cancelled: string[];
  /** There is something to rescue, expire, compact or validate, or an item to run: reasons to sweep or to claim. */
  rescueDue: boolean;
  expiryDue: boolean;
  compactionDue: boolean;
  validationDue: boolean;
  workDue: boolean;
}

/** Renews the lease and brings back what a worker must know; the one query of an idle replica. */
export async function sendHeartbeat(
  db: Db,
  id: string,
  batchIds: readonly string[],
  standing: Standing,
  periods: Pick<Periods, 'leaseSeconds' | 'heartbeatWithinMs'>,
): Promise<Heartbeat> {
  const result = await db.query<{
    alive: boolean;
    version: number;
    now_ms: number;
    cancelled: string[] | null;
    rescue_due: boolean;
    expiry_due: boolean;
    compaction_due: boolean;
    validation_due: boolean;
    work_due: boolean;
  }>({
    name: 'beat_worker',
    text: `
      with beat as (
        update workers set beat_at = clock_timestamp(), passed_over = $5::uuid[],
          blocked_since = case when $4::boolean then coalesce(blocked_since, clock_timestamp()) end
        where id = $1::uuid returning 1
      )
      select exists (select from beat) as alive,
        (select version from catalog_state) as version,
        (extract(epoch from clock_timestamp()) * 1000)::float8 as now_ms,
        (select array_agg(id::text) from batches where id = any($2::uuid[]) and status = 'cancelled') as cancelled,
        pg_postmaster_start_time() < clock_timestamp() - $3::int * interval '1 second'
          and exists (select from workers where id <> $1::uuid
            and beat_at < clock_timestamp() - $3::int * interval '1 second') as rescue_due,
        exists (select from batches b where b.completed_at is null and b.status = 'queued' and b.expires_at < clock_timestamp()
          and (exists (select from batch_cursors c where c.batch_id = b.id)
            or exists (select from batch_items i where i.batch_id = b.id and i.not_before is not null))) as expiry_due,
        exists (select from batches where completed_at < clock_timestamp() - interval '5 seconds'
          and results_id is null and (compacting_until is null or compacting_until < clock_timestamp())) as compaction_due,
        exists (select from openai_batches where in_progress_at is null and ended_at is null
          and (lease_until is null or lease_until < clock_timestamp())) as validation_due,
        exists (select from batch_cursors) or exists (select from batch_items where not_before <= statement_timestamp())
          as work_due`,
    values: [id, batchIds, periods.leaseSeconds, standing.blocked, plainArray(standing.passedOver)],
    withinMs: periods.heartbeatWithinMs,
  });
  const row = result.rows[0]!;
  return {
    alive: row.alive,
    catalogVersion: row.version,
    nowMs: row.now_ms,
    cancelled: row.cancelled ?? [],
    rescueDue: row.rescue_due,
    expiryDue: row.expiry_due,
    compactionDue: row.compaction_due,
    validationDue: row.validation_due,
    workDue: row.work_due,
  };
}

/** Ends the lease of a worker that holds nothing any more, and notes when. */
export async function deleteWorker(db: Db, id: string): Promise<void> {
  await db.query({
    name: 'delete_worker',
    text: `
      with gone as (
        delete from workers where id = $1::uuid returning invocation, slots
      )
      insert into worker_ends (invocation, ended_at) select invocation, clock_timestamp() from gone where slots > 0
      on conflict (invocation) do update set ended_at = greatest(worker_ends.ended_at, excluded.ended_at)`,
    values: [id],
  });
}

/** Workers silent for longer than the lease, locked against other rescuers; none while Postgres itself is young. */
export async function lockSilentWorkers(db: Db, exceptId: string, leaseSeconds: number): Promise<string[]> {
  const result = await db.query<{ id: string }>({
    name: 'lock_silent_workers',
    text: `
      select id from workers
      where id <> $1::uuid and beat_at < clock_timestamp() - $2::int * interval '1 second'
        and pg_postmaster_start_time() < clock_timestamp() - $2::int * interval '1 second'
      order by id for update skip locked`,
    values: [exceptId, leaseSeconds],
  });
  return result.rows.map((row) => row.id);
}

/**
 * The instances whose workers may still run: their last heartbeat is younger than the lease, or Postgres itself is. The
 * workers that `lockSilentWorkers` would consider lost are left out.
 */
export async function listLiveInstances(db: Db, leaseSeconds: number): Promise<string[]> {
  const result = await db.query<{ instance: string }>({
    name: 'list_live_instances',
    text: `
      select distinct instance from workers
      where beat_at >= clock_timestamp() - $1::int * interval '1 second'
        or pg_postmaster_start_time() >= clock_timestamp() - $1::int * interval '1 second'
      order by instance`,
    values: [leaseSeconds],
  });
  return result.rows.map((row) => row.instance);
}

/** Former workers of an instance, locked: the instance itself starts again and takes their items back at once. */
export async function lockFormerWorkers(db: Db, instance: string, exceptId: string): Promise<string[]> {
  const result = await db.query<{ id: string }>({
    name: 'lock_former_workers',
    text: 'select id from workers where instance = $1::text and id <> $2::uuid order by id for update skip locked',
    values: [instance, exceptId],
  });
  return result.rows.map((row) => row.id);
}

/**
 * Takes the running items of lost workers back: `available` again, `cancelled` in a cancelled batch, `discarded` after
 * `maxLosses` lost workers (at once with RELAY_BATCH_ON_WORKER_LOSS=discard, which is maxLosses 1). Walks only batches in
 * work. The leases go in the same statement. Returns the batches finished, and how many items moved.
 */
export async function rescueItems(
  db: Db,
  workerIds: readonly string[],
  instance: string,
  maxLosses: number,
): Promise<{ finished: string[]; rescued: number }> {
  const result = await db.query<{ finished: string | null; rescued: number }>({
    name: 'rescue_items',
    text: `
      with lost as materialized (
        select i.batch_id, i.idx from batches b join batch_items i on i.batch_id = b.id
        where b.completed_at is null and i.state = 'running' and i.worker_id = any($2::uuid[])
          and i.idx < coalesce((select next_idx from batch_cursors c where c.batch_id = b.id), b.total_items)
      ), locked as materialized (
        select id, status from batches where id in (select batch_id from lost) order by id for update
      ), updated as (
        update batch_items i set
          state = case when l.status = 'cancelled' then 'cancelled'
            when i.losses + 1 >= $3::int then 'discarded' else 'available' end::item_state,
          error = case when l.status <> 'cancelled' and i.losses + 1 >= $3::int
            then 'batch item: interrupted: ' || (i.losses + 1) || case when i.losses = 0 then ' worker lost' else ' workers lost' end end,
          finalized_at = case when l.status = 'cancelled' or i.losses + 1 >= $3::int then clock_timestamp() end,
          not_before = case when l.status <> 'cancelled' and i.losses + 1 < $3::int then clock_timestamp() end,
          losses = i.losses + 1, worker_id = null
        from lost x join locked l on l.id = x.batch_id
        where (select count(*) from locked) >= 0
          and i.batch_id = x.batch_id and i.idx = x.idx and i.state = 'running' and i.worker_id = any($2::uuid[])
        returning i.batch_id, i.idx, i.attempts, i.finalized_at,
          case when i.state = 'cancelled' then 'cancelled' else 'worker_lost' end as error_kind,
          substr(i.error, 13) as error_message
      ), ${RECORD_UNSENT}, ${COUNT_DOWN}, leases as (
        delete from workers where id = any($2::uuid[]) returning invocation, slots, beat_at
      ), ends as (
        insert into worker_ends (invocation, ended_at) select invocation, max(beat_at) from leases where slots > 0 group by invocation
        on conflict (invocation) do update set ended_at = greatest(worker_ends.ended_at, excluded.ended_at)
      )
      select (select string_agg(id::text, ';') from counted where open_items = 0) as finished,
        (select count(*)::int from updated) as rescued`,
    values: [instance, workerIds, maxLosses],
  });
  const row = result.rows[0]!;
  return { finished: row.finished === null ? [] : row.finished.split(';'), rescued: row.rescued };
}
