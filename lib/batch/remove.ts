import { isUuid } from '../base/clock.ts';
import { ApiError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { PayloadRef, PayloadStore } from '../payloads/payload-store.ts';
import { type BatchKey, deleteBatch, findBatch } from './batches.sql.ts';

export interface RemoveDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'delete'>;
  log: Log;
}

/**
 * Deletes a finished batch with its items; its usage events stay. Its own objects go at once, as far as that succeeds;
 * segments hold answers of other batches too and are left to the sweep. Throws `not_found`, or `batch_not_finished`.
 */
export async function removeBatch(deps: RemoveDeps, key: BatchKey): Promise<void> {
  if (!isUuid(key.id)) throw new ApiError('not_found');
  const removed = await deleteBatch(deps.db, key);
  if (removed === null) {
    if ((await findBatch(deps.db, key)) === null) throw new ApiError('not_found');
    throw new ApiError('batch_not_finished');
  }
  const refs: PayloadRef[] = [{ kind: 'input', id: removed.input_id }];
  if (removed.results_id !== null) {
    refs.push({ kind: 'result', id: removed.results_id }, { kind: 'index', id: removed.results_id });
  }
  await deps.payloads.delete(refs).catch((error) => {
    deps.log.warn({ err: reasonOf(error), batchId: key.id }, 'could not delete the objects of a deleted batch');
  });
}
