import { ApiError } from '../../base/errors.ts';
import { cancelBatchRow } from '../../batch/cancel.sql.ts';
import { announceCancel, type CancelDeps } from '../../batch/cancel.ts';
import {
  ANTHROPIC,
  findMessageBatch,
  lockMessageBatch,
  type MessageBatchKey,
  type MessageBatchRow,
} from './message-batches.sql.ts';

/**
 * Cancels a batch that has not ended: what waits is canceled at once, what runs is aborted, finished results stay. Again
 * while it is canceling changes nothing. Throws `not_found`, and 400 for a batch that has ended: a client would repeat a
 * 409. Returns the batch as it is then; null when it was deleted at that moment.
 */
export async function cancelMessageBatch(deps: CancelDeps, key: MessageBatchKey): Promise<MessageBatchRow | null> {
  const { id, owner } = key;
  await deps.db.transaction(async (tx) => {
    const batch = await lockMessageBatch(tx, key);
    if (batch === null) throw new ApiError('not_found');
    if (batch.results_id !== null) throw new ApiError('invalid_value', 'a batch that has ended cannot be canceled');
    await cancelBatchRow(tx, { id, owner, surface: ANTHROPIC, instance: deps.instance });
  });
  await announceCancel(deps, id);
  return findMessageBatch(deps.db, key);
}
