import { plainArray } from '../db/arrays.ts';
import type { Db } from '../db/database.ts';
import { WORKER_LIMIT_MS } from '../db/silence.ts';
import type { BatchContext } from '../model/batch.ts';
import { COUNT_DOWN, RECORD_UNSENT } from '../usage/unsent.sql.ts';

/** One batch that has items to claim or running, as the planner sees it. */
export interface OpenBatch {
  batchId: string;
  owner: string;
  /** Fresh items not yet claimed. */
  fresh: number;
  /** Items running anywhere: claimed, not final, not released. Derived from counters that cannot drift. */
  running: number;
  /** Released items that may run now. */
  due: number;
}

export interface OpenWork {
  batches: OpenBatch[];
  /** Milliseconds until the next released item is due; null when none waits. */
  nextDueMs: number | null;
}

/**
 * All queued batches in work. Reads one row a batch: claimed = the cursor (no cursor: everything was), running =
 * claimed - final - waiting.
 */
export async function readOpenWork(db: Db): Promise<OpenWork> {
  const result = await db.query<{
    batch_id: string;
    owner: string;
    fresh: number;
    running: number;
    due: number;
    next_due_ms: number | null;
  }>({
    name: 'read_open_work',
    text: `
      with waits as (
        select batch_id,
          count(*) filter (where not_before <= statement_timestamp())::int as due,
          count(*)::int as waiting,
          min(not_before) filter (where not_before > statement_timestamp()) as next_due
        from batch_items where not_before is not null group by batch_id
      )
      select b.id as batch_id, b.owner,
        b.total_items - coalesce(c.next_idx, b.total_items) as fresh,
        coalesce(c.next_idx, b.total_items) - (b.total_items - b.open_items) - coalesce(w.waiting, 0) as running,
        coalesce(w.due, 0) as due,
        extract(epoch from w.next_due - clock_timestamp())::float8 * 1000 as next_due_ms
      from batches b
      left join batch_cursors c on c.batch_id = b.id
      left join waits w on w.batch_id = b.id
      where b.completed_at is null and b.status = 'queued'
        and (b.expires_at is null or b.expires_at > clock_timestamp())`,
    values: [],
    withinMs: WORKER_LIMIT_MS,
  });
  let nextDueMs: number | null = null;
  const batches = result.rows.map((row) => {
    if (row.next_due_ms !== null)
      nextDueMs = Math.min(nextDueMs ?? Number.POSITIVE_INFINITY, Math.max(0, row.next_due_ms));
    return { batchId: row.batch_id, owner: row.owner, fresh: row.fresh, running: row.running, due: row.due };
  });
  return { batches, nextDueMs };
}

/** A claimed row, as arrays (a row object each would cost more than the rest of the claim). */
export interface ClaimedRow {
  batchId: string;
  idx: number;
  claimNo: number;
  inputOffset: number;
  inputLength: number;
  inputCrc: number;
  attempts: number;
  rounds: number;
  waitedMs: number;
  loadFailures: number;
  failedKey: string | null;
  failedRounds: number;
  failingForMs: number | null;
}

/**
 * Claims for `workerId`: of each batch in `batchIds` the next `counts[i]` fresh items, and up to `due[i]` released ones
 * whose time has come, oldest first. One statement. Another claim's batches and items are skipped, not waited for. A
 * worker without a lease row gets nothing, and the row is locked against a rescue that would not see what is claimed
 * beside it (heartbeats do not wait for that lock). Returns the rows in (batch, idx) order and the catalogue version.
 */
export async function claimItems(
  db: Db,
  workerId: string,
  batchIds: readonly string[],
  counts: readonly number[],
  due: readonly number[],
): Promise<{ rows: ClaimedRow[]; catalogVersion: number }> {
  const result = await db.query<{ version: number; items: string | null }>({
    name: 'claim_items',
    text: `
      with lease as materialized (
        select id from workers where id = $1::uuid for key share
      ), wanted as (
        select w.batch_id, w.n, w.due from unnest($2::uuid[], $3::int[], $4::int[]) as w(batch_id, n, due)
      ), picked as materialized (
        select c.batch_id, c.next_idx, least(w.n, c.total_items - c.next_idx) as n, c.total_items
        from batch_cursors c join wanted w on w.batch_id = c.batch_id
        where exists (select from lease) and w.n > 0
        order by c.batch_id
        for update of c skip locked
      ), advanced as (
        update batch_cursors c set next_idx = p.next_idx + p.n
        from picked p where c.batch_id = p.batch_id and p.next_idx + p.n < p.total_items
      ), drained as (
        delete from batch_cursors c using picked p
        where c.batch_id = p.batch_id and p.next_idx + p.n >= p.total_items
      ), fresh as (
        update batch_items i
        set state = 'running', worker_id = $1::uuid, claim_no = i.claim_no + 1,
          started_at = case when i.idx = 0 then clock_timestamp() end
        from picked p
        where i.batch_id = p.batch_id and i.idx >= p.next_idx and i.idx < p.next_idx + p.n
          and i.state = 'available' and i.not_before is null
        returning i.batch_id, i.idx, i.claim_no, i.input_offset, i.input_length, i.input_crc, i.attempts, i.rounds, i.waited_ms,
          i.load_failures, i.failed_key, i.failed_rounds, i.failing_since
      ), waiting as materialized (
        -- statement_timestamp, because an index condition cannot hold the volatile clock_timestamp.
        select x.batch_id, x.idx
        from wanted w join batches b on b.id = w.batch_id
        cross join lateral (
          select i.batch_id, i.idx from batch_items i
          where i.batch_id = w.batch_id and i.not_before <= statement_timestamp() and i.state = 'available'
          order by i.not_before
          limit w.due
          for update of i skip locked
        ) x
        where w.due > 0 and exists (select from lease) and b.status = 'queued'
          and (b.expires_at is null or b.expires_at > clock_timestamp())
      ), again as (
        update batch_items i
        set state = 'running', worker_id = $1::uuid, claim_no = i.claim_no + 1, not_before = null
        from waiting w where i.batch_id = w.batch_id and i.idx = w.idx and i.state = 'available'
        returning i.batch_id, i.idx, i.claim_no, i.input_offset, i.input_length, i.input_crc, i.attempts, i.rounds, i.waited_ms,
          i.load_failures, i.failed_key, i.failed_rounds, i.failing_since
      ), claimed as (
        select * from fresh union all select * from again
      )
      select (select version from catalog_state) as version,
        string_agg(concat_ws(',', batch_id, idx, claim_no, input_offset, input_length, input_crc, attempts, rounds, waited_ms,
          load_failures, coalesce(failed_key, ''), failed_rounds,
          extract(epoch from clock_timestamp() - failing_since)::float8 * 1000), ';' order by batch_id, idx) as items
      from claimed`,
    values: [workerId, batchIds, counts, due],
    withinMs: WORKER_LIMIT_MS,
  });
  const { version, items } = result.rows[0]!;
  return { catalogVersion: version, rows: items === null ? [] : items.split(';').map(parseClaimed) };
}

function parseClaimed(text: string): ClaimedRow {
  const f = text.split(',');
  return {
    batchId: f[0]!,
    idx: Number(f[1]),
    claimNo: Number(f[2]),
    inputOffset: Number(f[3]),
    inputLength: Number(f[4]),
    inputCrc: Number(f[5]),
    attempts: Number(f[6]),
    rounds: Number(f[7]),
    waitedMs: Number(f[8]),
    loadFailures: Number(f[9]),
    failedKey: f[10] || null,
    failedRounds: Number(f[11]),
    failingForMs: f[12] === undefined ? null : Number(f[12]),
  };
}

interface ContextRow {
  id: string;
  owner: string;
  shape: BatchContext['shape'];
  surface: string;
  policy_id: string | null;
  policy: string | null;
  project_id: string | null;
  project: string | null;
  team_id: string | null;
  team: string | null;
  principal_kind: BatchContext['principalKind'];
  principal_id: string | null;
  credential_kind: BatchContext['credentialKind'];
  credential_id: string;
  token_expires_ms: number | null;
  token_version: number | null;
  anthropic_version: string | null;
  anthropic_beta: string | null;
  max_attempts: number;
  on_limit: BatchContext['onLimit'];
  expires_ms: number | null;
  input_id: string;
}

/** Reads the facts of batches that running items use. None of them changes after submit, so workers may keep them. */
export async function readContexts(db: Db, ids: readonly string[]): Promise<BatchContext[]> {
  const result = await db.query<ContextRow>({
    name: 'read_contexts',
    text: `
      select id, owner, shape, surface, policy_id, policy, project_id, project, team_id, team, principal_kind, principal_id,
        credential_kind, credential_id, token_version, anthropic_version, anthropic_beta, max_attempts, on_limit, input_id,
        (extract(epoch from token_expires_at) * 1000)::float8 as token_expires_ms,
        (extract(epoch from expires_at) * 1000)::float8 as expires_ms
      from batches where id = any($1::uuid[])`,
    values: [ids],
  });
  return result.rows.map((row) => ({
    id: row.id,
    owner: row.owner,
    shape: row.shape,
    surface: row.surface,
    policyId: row.policy_id,
    policy: row.policy,
    projectId: row.project_id,
    project: row.project,
    teamId: row.team_id,
    team: row.team,
    principalKind: row.principal_kind,
    principalId: row.principal_id,
    credentialKind: row.credential_kind,
    credentialId: row.credential_id,
    tokenExpiresAt: row.token_expires_ms,
    tokenVersion: row.token_version,
    anthropicVersion: row.anthropic_version,
    anthropicBeta: row.anthropic_beta,
    maxAttempts: row.max_attempts,
    onLimit: row.on_limit,
    expiresAt: row.expires_ms,
    inputId: row.input_id,
  }));
}

/**
 * Makes the running items of a worker that it does not hold available again (cancelled, in a cancelled batch): their
 * claim was committed but its answer was lost. `idxs[i]` of `batchIds[i]` is held.
 */
export async function releaseUnheld(
  db: Db,
  workerId: string,
  instance: string,
  batchIds: readonly string[],
  idxs: readonly number[],
): Promise<void> {
  await db.query({
    name: 'release_unheld',
    text: `
      with lost as materialized (
        select i.batch_id, i.idx from batches b join batch_items i on i.batch_id = b.id
        where b.completed_at is null and i.state = 'running' and i.worker_id = $2::uuid
          and i.idx < coalesce((select next_idx from batch_cursors c where c.batch_id = b.id), b.total_items)
          and not exists (select from unnest($3::uuid[], $4::int[]) as h(batch_id, idx)
            where h.batch_id = i.batch_id and h.idx = i.idx)
      ), locked as materialized (
        select id, status from batches where id in (select batch_id from lost) order by id for update
      ), updated as (
        update batch_items i set
          state = case when l.status = 'cancelled' then 'cancelled' else 'available' end::item_state,
          finalized_at = case when l.status = 'cancelled' then clock_timestamp() end,
          not_before = case when l.status <> 'cancelled' then clock_timestamp() end, worker_id = null
        from lost x join locked l on l.id = x.batch_id
        where (select count(*) from locked) >= 0
          and i.batch_id = x.batch_id and i.idx = x.idx and i.state = 'running' and i.worker_id = $2::uuid
        returning i.batch_id, i.idx, i.attempts, i.finalized_at, 'cancelled' as error_kind, null::text as error_message
      ), ${RECORD_UNSENT}, ${COUNT_DOWN}
      select count(*) from counted`,
    values: [instance, workerId, plainArray(batchIds), plainArray(idxs)],
  });
}
