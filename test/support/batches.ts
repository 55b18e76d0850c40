import { uuidv7 } from '../../lib/base/clock.ts';
import { insertBatch } from '../../lib/batch/batches.sql.ts';
import { insertItems } from '../../lib/batch/submit/record.sql.ts';
import type { Database, Db } from '../../lib/db/database.ts';
import { type ClaimedRow, claimItems, readOpenWork } from '../../lib/worker/claim.sql.ts';
import type { OutcomeRow } from '../../lib/worker/commit.sql.ts';
import { NO_ROUTE } from '../../lib/worker/item/outcome.ts';
import { insertWorker } from '../../lib/worker/lease/lease.sql.ts';

export interface BatchOptions {
  owner?: string;
  inputId?: string;
  /** Spans of the items; two bytes each, one after the other, unless given. */
  spans?: { offsets: number[]; lengths: number[]; crcs: number[] };
  maxAttempts?: number;
  completionWindowSeconds?: number;
}

/** Inserts a batch of `count` items as a submit does, without an input object. Returns its id. */
export async function makeBatch(db: Database, count: number, options: BatchOptions = {}): Promise<string> {
  const id = uuidv7();
  const spans = options.spans ?? {
    offsets: Array.from({ length: count }, (_, i) => 2 * i),
    lengths: Array(count).fill(2),
    crcs: Array(count).fill(0),
  };
  await db.transaction(async (tx) => {
    await insertBatch(tx, {
      id,
      surface: 'relay',
      owner: options.owner ?? 'ann',
      shape: 'openai',
      totalItems: count,
      inputId: options.inputId ?? uuidv7(),
      customIdsId: null,
      anthropicVersion: null,
      anthropicBeta: null,
      maxAttempts: options.maxAttempts ?? 1,
      onLimit: 'fail',
      completionWindowSeconds: options.completionWindowSeconds ?? null,
      policyId: null,
      policy: 'p',
      projectId: null,
      project: null,
      teamId: null,
      team: null,
      principalKind: null,
      principalId: null,
      credentialKind: 'key',
      credentialId: 'k',
      tokenExpiresAt: null,
      tokenVersion: null,
    });
    await insertItems(tx, id, { count, offsets: spans.offsets, lengths: spans.lengths }, Uint32Array.from(spans.crcs));
  });
  return id;
}

/** A worker with a lease. */
export async function makeWorker(db: Db, instance = 'test'): Promise<string> {
  const id = uuidv7();
  await insertWorker(db, id, { instance, slots: 8, invocation: false });
  return id;
}

/** Claims up to `n` fresh items of one batch. */
export async function claim(db: Db, workerId: string, batchId: string, n: number, due = 0): Promise<ClaimedRow[]> {
  return (await claimItems(db, workerId, [batchId], [n], [due])).rows;
}

/** A batch as the planner sees it; undefined when it sees none. */
export async function openWork(db: Db, batchId: string) {
  return (await readOpenWork(db)).batches.find((batch) => batch.batchId === batchId);
}

/** A completed outcome of a claimed row, with two bytes of response at `offset`. */
export function success(row: Pick<ClaimedRow, 'batchId' | 'idx' | 'claimNo'>, offset = 0): OutcomeRow {
  return {
    batchId: row.batchId,
    idx: row.idx,
    claimNo: row.claimNo,
    state: 'completed',
    error: null,
    span: { offset, length: 2, crc: 0 },
    usage: {
      status: 200,
      errorKind: null,
      errorMessage: null,
      attempts: 1,
      durationMs: 5,
      startedAt: Date.now(),
      responseStartedAt: Date.now(),
      responseEndedAt: Date.now(),
      finishReason: 'stop',
      route: NO_ROUTE,
      tokens: { input: 3, output: 4 },
      costNanos: 12n,
      costBreakdown: { input: 12 },
    },
  };
}
