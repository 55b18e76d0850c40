import { ApiError } from '../../base/errors.ts';
import { cancelBatchRow } from '../../batch/cancel.sql.ts';
import { announceCancel, type CancelDeps } from '../../batch/cancel.ts';
import { noSuchBatch, parseBatchId, requireBatch } from './find-batch.ts';
import { markCancelling, type OpenaiBatchRow } from './openai-batches.sql.ts';
import { endCancelled } from './validation/validation.sql.ts';

export interface CancelOpenaiDeps extends CancelDeps {
  /** Writes the files of batches that have no running item; where it is not given the sweep does. Never rejects. */
  compact?(batchIds: readonly string[]): Promise<void>;
}

/** A cancelled batch, and the writing of its files as far as that has begun. */
export interface Cancelled {
  row: OpenaiBatchRow;
  writing: Promise<void> | undefined;
}

/**
 * Cancels a batch and returns it as it is then. One that runs: the core's cancel, in one transaction with the mark; its
 * finished lines are kept, and it is `cancelled` with its files. One that is being validated never runs: it is
 * `cancelling` in this answer and `cancelled` when the answer goes out. Idempotent until then. Throws `not_found`, and
 * `conflict` for a batch that has ended.
 */
export async function cancelOpenaiBatch(deps: CancelOpenaiDeps, owner: string, publicId: string): Promise<Cancelled> {
  const id = parseBatchId(publicId);
  if (id === null) throw noSuchBatch(publicId);
  const { instance } = deps;
  const found = await deps.db.transaction(async (tx) => {
    const marked = await markCancelling(tx, { owner, id });
    if (marked?.ran && marked.finalStatus === null) {
      await cancelBatchRow(tx, { id, owner, surface: 'openai', instance });
    }
    return marked;
  });
  if (found === null) throw noSuchBatch(publicId);
  const { ran, finalStatus } = found;
  if (finalStatus !== null) {
    throw new ApiError('conflict', `Cannot cancel a batch with status '${finalStatus}'.`);
  }
  const row = await requireBatch(deps.db, owner, publicId);
  if (!ran) {
    await endCancelled(deps.db, id);
    return { row, writing: undefined };
  }
  await announceCancel(deps, id);
  return { row, writing: deps.compact?.([id]) };
}
