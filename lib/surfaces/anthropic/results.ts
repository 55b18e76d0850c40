import { sleep } from '../../clock.ts';
import { ApiError } from '../../errors.ts';
import { findMessageBatch, type MessageBatchKey } from '../../store/anthropic-batches.sql.ts';
import type { Db } from '../../store/db.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../store/payloads.ts';

export interface MessageResultsDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'stream' | 'size'>;
}

/** Where the results of an ended batch are. */
export interface MessageResults {
  ref: PayloadRef;
  bytes: number;
}

const TRIES = 3;
const RETRY_MS = 200;

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

/** Their bytes. A read that breaks goes on from where it was, up to three times in a row. */
export async function* messageResultBytes(
  { payloads }: Pick<MessageResultsDeps, 'payloads'>,
  { ref, bytes }: MessageResults,
): AsyncGenerator<Buffer> {
  let at = 0;
  for (let failures = 0; at < bytes; ) {
    try {
      for await (const chunk of payloads.stream(ref, at, bytes - at)) {
        at += chunk.length;
        failures = 0;
        yield chunk;
      }
      return;
    } catch (error) {
      if (error instanceof PayloadNotFound || ++failures === TRIES) throw error;
      await sleep(RETRY_MS);
    }
  }
}
