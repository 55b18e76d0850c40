import { hash } from 'node:crypto';
import { type Clock, uuidv7 } from '../clock.ts';
import { ApiError, reasonOf } from '../errors.ts';
import type { Log } from '../log.ts';
import type { WakeQueue } from '../queue/queue.ts';
import { findBatch, insertBatch, lockOwner, pendingItems } from '../store/batches.sql.ts';
import { type Database, type Db, isConnectionError } from '../store/db.ts';
import {
  claimIdempotencyKey,
  findIdempotencyKey,
  type IdempotencyName,
  type IdempotencyRow,
} from '../store/idempotency.sql.ts';
import { insertItems } from '../store/items.sql.ts';
import type { PayloadRef, PayloadStore } from '../store/payloads.ts';
import { takeUpload } from '../store/uploads.sql.ts';
import type { Attribution } from './batch.ts';
import { checksumItems } from './slice.ts';
import type { Submission } from './submission.ts';

export interface SubmitDeps {
  db: Database;
  payloads: Pick<PayloadStore, 'write' | 'delete'>;
  queue: WakeQueue;
  clock: Clock;
  log: Log;
  /** 0: no limit. */
  maxPendingItemsPerOwner: number;
}

export interface SubmitRequest extends Submission {
  surface: string;
  attribution: Attribution;
  /** The bytes as they were sent; the item spans point into them. */
  body: Buffer;
  /** 1-255 printable ASCII characters; null without one. */
  idempotencyKey: string | null;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
  /** The upload that `body` was read from; it is used up with the batch. */
  upload?: { id: string; sha256: Buffer };
  /** What the Idempotency-Key is compared by; that of `body` unless given. */
  bodySha256?: Buffer;
}

export interface Submitted {
  id: string;
  totalItems: number;
  /** True when an earlier submit of the same Idempotency-Key made the batch. */
  replayed: boolean;
}

/**
 * Makes a batch: the body as one durable object, then one transaction with the idempotency row first, so that a second
 * submit of the key waits for this one. Nothing is visible before the commit, and the workers are woken after it.
 * Throws ApiError `idempotency_conflict` (same key, other body), `upload_used`, `too_many_pending`, the store's errors.
 */
export async function submitBatch(deps: SubmitDeps, request: SubmitRequest): Promise<Submitted> {
  const { surface, attribution, items } = request;
  const { owner } = attribution;
  const id = uuidv7(deps.clock.now());
  const input: PayloadRef = { kind: 'input', id: uuidv7(deps.clock.now()) };
  const made: Submitted = { id, totalItems: items.count, replayed: false };
  const claim = request.idempotencyKey === null ? null : claimOf(request, request.idempotencyKey, id);

  // Asked here to spare the write, and again under the lock of the row: only that one decides.
  const earlier = claim && (await findIdempotencyKey(deps.db, claim.name));
  if (claim && earlier) return replay(earlier, claim.row, made);
  await refuseOverPending(deps, deps.db, owner, items.count);

  const crcs = checksumItems(request.body, items);
  await deps.payloads.write(input, [request.body]);

  let result = made;
  try {
    result = await deps.db.transaction(async (tx) => {
      const winner = claim && (await claimKey(tx, claim));
      if (claim && winner) return replay(winner, claim.row, made);
      if (request.upload) await useUpload(tx, request.upload, owner, made);
      if (deps.maxPendingItemsPerOwner > 0) {
        await lockOwner(tx, owner);
        await refuseOverPending(deps, tx, owner, items.count);
      }
      await insertBatch(tx, {
        ...attribution,
        id,
        surface,
        shape: request.shape,
        totalItems: items.count,
        inputId: input.id,
        anthropicVersion: request.anthropicVersion,
        anthropicBeta: request.anthropicBeta,
        maxAttempts: request.maxAttempts,
        onLimit: request.onLimit,
        completionWindowSeconds: request.completionWindowSeconds,
      });
      await insertItems(tx, id, items, crcs);
      return made;
    });
  } catch (error) {
    if (error instanceof ApiError || !isConnectionError(error)) {
      await discard(deps, input);
      throw error;
    }
    // The answer to COMMIT may be what was lost. The object stays: if the batch is there after all, it needs it.
    if ((await findBatch(deps.db, { surface, owner, id })) === null) throw error;
  }
  if (result.replayed) await discard(deps, input);
  else await wake(deps, items.count);
  return result;
}

interface Claim {
  name: IdempotencyName;
  row: IdempotencyRow;
}

function claimOf(request: SubmitRequest, key: string, batchId: string): Claim {
  return {
    name: { owner: request.attribution.owner, surface: request.surface, key },
    row: { body_sha256: request.bodySha256 ?? hash('sha256', request.body, 'buffer'), batch_id: batchId },
  };
}

/** Null when the key is ours now, else the row that has it. */
async function claimKey(tx: Db, claim: Claim): Promise<IdempotencyRow | null> {
  for (;;) {
    if (await claimIdempotencyKey(tx, claim.name, claim.row)) return null;
    const winner = await findIdempotencyKey(tx, claim.name);
    if (winner !== null) return winner; // null: it turned 24 h old between the two statements
  }
}

/** The first answer again. The same bytes hold the same number of items, so the batch need not be there any more. */
function replay(earlier: IdempotencyRow, mine: IdempotencyRow, made: Submitted): Submitted {
  if (!earlier.body_sha256.equals(mine.body_sha256)) throw new ApiError('idempotency_conflict');
  return { ...made, id: earlier.batch_id, replayed: true };
}

/** The row's lock makes a second submit of it wait for this one. */
async function useUpload(
  tx: Db,
  { id, sha256 }: NonNullable<SubmitRequest['upload']>,
  owner: string,
  { id: batchId, totalItems }: Submitted,
): Promise<void> {
  if (await takeUpload(tx, { id, owner }, { batchId, sha256, totalItems })) return;
  throw new ApiError('upload_used', undefined, { param: 'upload_id' });
}

async function refuseOverPending(deps: SubmitDeps, db: Db, owner: string, more: number): Promise<void> {
  const limit = deps.maxPendingItemsPerOwner;
  if (limit === 0) return;
  const pending = await pendingItems(db, owner);
  if (pending + more <= limit) return;
  const message = `too many pending items: ${pending} pending and ${more} sent, the limit is ${limit}`;
  throw new ApiError('too_many_pending', message, { param: 'requests' });
}

/** Best effort: what stays behind is unreferenced, and the sweep deletes it after a day. */
async function discard(deps: SubmitDeps, ref: PayloadRef): Promise<void> {
  await deps.payloads.delete([ref]).catch((error) => {
    deps.log.warn({ err: reasonOf(error), object: ref.id }, 'could not delete the payload of a refused submit');
  });
}

/** The sweep wakes the workers if this fails. */
async function wake(deps: SubmitDeps, items: number): Promise<void> {
  await deps.queue.send({ kind: 'work' }, items).catch((error) => {
    deps.log.warn({ err: reasonOf(error) }, 'could not wake the workers');
  });
}
