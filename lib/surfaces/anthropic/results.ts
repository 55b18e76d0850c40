import { ApiError } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { readOn } from '../../payloads/read-on.ts';
import { findMessageBatch, type MessageBatchKey } from './message-batches.sql.ts';

export interface MessageResultsDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'stream' | 'size'>;
}

/** Where the results of an ended batch are. */
export interface MessageResults {
  ref: PayloadRef;
  bytes: number;
}

/** Finds the results. Throws `not_found` for a batch that is unknown, was deleted, or has not ended. */
export async function findMessageResults(deps: MessageResultsDeps, key: MessageBatchKey): Promise<MessageResults> {
  const batch = await findMessageBatch(deps.db, key);
  if (batch === null) throw new ApiError('not_found');
  if (batch.results_id === null) throw new ApiError('not_found', 'results are available once the batch has ended');
  const ref: PayloadRef = { kind: 'result', id: batch.results_id };
  try {
    return { ref, bytes: await deps.payloads.size(ref) };
  } catch (error) {
    const gone = error instanceof PayloadNotFound && (await findMessageBatch(deps.db, key)) === null;
    throw gone ? new ApiError('not_found', undefined, { cause: error }) : error;
  }
}

/** Their bytes. */
export function messageResultBytes(
  { payloads }: Pick<MessageResultsDeps, 'payloads'>,
  { ref, bytes }: MessageResults,
): AsyncGenerator<Buffer> {
  return readOn(payloads, ref, 0, bytes);
}
