import { ApiError, reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Database, Db } from '../../db/database.ts';
import { isConnectionError } from '../../db/errors.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import type { WakeQueue } from '../../queue/queue.ts';
import { findBatch, insertBatch, lockOwner, type NewBatch, pendingItems } from '../batches.sql.ts';
import {
  claimIdempotencyKey,
  findIdempotencyKey,
  type IdempotencyName,
  type IdempotencyRow,
  type NewItems,
} from './record.sql.ts';

export interface RecordDeps {
  db: Database;
  payloads: Pick<PayloadStore, 'delete'>;
  queue: WakeQueue;
  log: Log;
  /** 0: no limit. */
  maxPendingItemsPerOwner: number;
}

/** A batch whose input is durable already. */
export interface PreparedBatch {
  row: Omit<NewBatch, 'totalItems'>;
  items: NewItems;
  /** Of the Idempotency-Key, when there is one: its name, and the digest of what was sent under it. */
  idempotency: { name: IdempotencyName; sha256: Buffer } | null;
  /** Objects that were written for this batch alone: deleted when it does not come about. */
  objects: readonly PayloadRef[];
  /** Further work in the same transaction, before the rows of the batch. An error of it undoes all. */
  within?(tx: Db): Promise<void>;
}

export interface Recorded {
  id: string;
  totalItems: number;
  /** True when an earlier submit of the same Idempotency-Key made the batch. */
  replayed: boolean;
}

/**
 * Makes a batch in one transaction with the idempotency row first, so that a second submit of the key waits for this one.
 * Nothing is visible before the commit, and the workers are woken after it. Every surface comes through here.
 * Throws ApiError `idempotency_conflict` (same key, other body), `too_many_pending`, what `within` throws.
 */
export async function recordBatch(deps: RecordDeps, batch: PreparedBatch): Promise<Recorded> {
  const { row, items } = batch;
  const { id, owner, surface } = row;
  const made: Recorded = { id, totalItems: items.count, replayed: false };
  const claim = batch.idempotency && {
    name: batch.idempotency.name,
    row: { body_sha256: batch.idempotency.sha256, batch_id: id },
  };
  let result = made;
  try {
    result = await deps.db.transaction(async (tx) => {
      const winner = claim && (await claimKey(tx, claim));
      if (claim && winner) return replay(winner, claim.row, made);
      await batch.within?.(tx);
      if (deps.maxPendingItemsPerOwner > 0) {
        await lockOwner(tx, owner);
        await refuseOverPending(deps, tx, owner, items.count);
      }
      await insertBatch(tx, { ...row, totalItems: items.count });
      await items.insert(tx, id);
      return made;
    });
  } catch (error) {
    if (!isConnectionError(error)) {
      await discard(deps, batch.objects);
      throw error;
    }
    // The answer to COMMIT may be what was lost. The objects stay: if the batch is there after all, it needs them.
    if ((await findBatch(deps.db, { surface, owner, id })) === null) throw error;
  }
  if (result.replayed) await discard(deps, batch.objects);
  else await wake(deps, items.count);
  return result;
}

/**
 * The answer of an earlier submit of the key, before anything is written for this one; null when the key is free, which
 * only `recordBatch` decides for good. Throws `idempotency_conflict`.
 */
export async function findReplay(
  db: Db,
  { name, sha256 }: NonNullable<PreparedBatch['idempotency']>,
  totalItems: number,
): Promise<Recorded | null> {
  const earlier = await findIdempotencyKey(db, name);
  const mine = { body_sha256: sha256, batch_id: '' };
  return earlier && replay(earlier, mine, { id: '', totalItems, replayed: false });
}

/** Throws `too_many_pending` when `more` items would bring the owner over the limit. */
export async function refuseOverPending(
  deps: Pick<RecordDeps, 'maxPendingItemsPerOwner'>,
  db: Db,
  owner: string,
  more: number,
): Promise<void> {
  const limit = deps.maxPendingItemsPerOwner;
  if (limit === 0) return;
  const pending = await pendingItems(db, owner);
  if (pending + more <= limit) return;
  const message = `too many pending items: ${pending} pending and ${more} sent, the limit is ${limit}`;
  throw new ApiError('too_many_pending', message, { param: 'requests' });
}

/** Null when the key is ours now, else the row that has it. */
export async function claimKey(
  tx: Db,
  claim: { name: IdempotencyName; row: IdempotencyRow },
): Promise<IdempotencyRow | null> {
  for (;;) {
    if (await claimIdempotencyKey(tx, claim.name, claim.row)) return null;
    const winner = await findIdempotencyKey(tx, claim.name);
    if (winner !== null) return winner; // null: it turned 24 h old between the two statements
  }
}

/** The first answer again. The same bytes hold the same number of items, so the batch need not be there any more. */
function replay(earlier: IdempotencyRow, mine: IdempotencyRow, made: Recorded): Recorded {
  if (!earlier.body_sha256.equals(mine.body_sha256)) throw new ApiError('idempotency_conflict');
  return { ...made, id: earlier.batch_id, replayed: true };
}

/** Best effort: what stays behind is unreferenced, and the sweep deletes it after a day. */
async function discard(deps: RecordDeps, objects: readonly PayloadRef[]): Promise<void> {
  if (objects.length === 0) return;
  await deps.payloads.delete(objects).catch((error) => {
    deps.log.warn({ err: reasonOf(error), object: objects[0]!.id }, 'could not delete the payload of a refused submit');
  });
}

/** The sweep wakes the workers if this fails. */
async function wake(deps: RecordDeps, items: number): Promise<void> {
  await deps.queue.send({ kind: 'work' }, items).catch((error) => {
    deps.log.warn({ err: reasonOf(error) }, 'could not wake the workers');
  });
}
