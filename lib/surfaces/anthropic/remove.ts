import { ApiError, reasonOf } from '../../base/errors.ts';
import type { RemoveDeps } from '../../batch/remove.ts';
import type { PayloadRef } from '../../payloads/payload-store.ts';
import { deleteMessageBatch, findMessageBatch, type MessageBatchKey } from './message-batches.sql.ts';

/**
 * Deletes a batch that has ended, with its items and its own objects; usage events stay. Throws `not_found`, and 400
 * for one that has not ended.
 */
export async function removeMessageBatch(deps: RemoveDeps, key: MessageBatchKey): Promise<void> {
  const removed = await deleteMessageBatch(deps.db, key);
  if (removed === null) {
    if ((await findMessageBatch(deps.db, key)) === null) throw new ApiError('not_found');
    throw new ApiError('invalid_value', 'a batch that has not ended cannot be deleted: cancel it first');
  }
  const refs: PayloadRef[] = [
    { kind: 'input', id: removed.input_id },
    { kind: 'result', id: removed.results_id },
  ];
  if (removed.custom_ids_id !== null) refs.push({ kind: 'custom_ids', id: removed.custom_ids_id });
  await deps.payloads.delete(refs).catch((error) => {
    deps.log.warn({ err: reasonOf(error), batchId: key.id }, 'could not delete the objects of a deleted batch');
  });
}
