import { type BodyBudget, counted } from '../../base/body-budget.ts';
import { isUuid } from '../../base/clock.ts';
import { ApiError, reasonOf } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { isSigned } from './upload-url.ts';
import { findReceivable } from './uploads.sql.ts';

export interface ReceiveUploadDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'writeStream' | 'streamBytes'>;
  /** Counts what is on its way into the store. */
  bodies: BodyBudget;
}

export interface ReceivedUpload {
  id: string;
  /** As they stand in the URL. */
  bytes: string;
  signature: string;
  source: AsyncIterable<Uint8Array>;
}

/**
 * Takes the bytes of an upload into the store, with bounded memory. Until it is used it may be sent again; the last one
 * that arrived whole counts. Throws `not_found` for what is not signed, unknown or expired, `upload_used`, `invalid_value`
 * for another length than was signed, `upload_incomplete` when the client goes away, `overloaded`.
 */
export async function receiveUpload(deps: ReceiveUploadDeps, sent: ReceivedUpload): Promise<void> {
  const { id } = sent;
  if (!isUuid(id)) throw new ApiError('not_found');
  const { secret, owner, bytes, open, used } = await findReceivable(deps.db, id);
  if (
    owner === null ||
    bytes === null ||
    sent.bytes !== String(bytes) ||
    !isSigned(secret, { id, bytes }, sent.signature)
  ) {
    throw new ApiError('not_found');
  }
  if (used) throw new ApiError('upload_used');
  if (!open) throw new ApiError('not_found');
  const account = deps.bodies.open(owner);
  const source = counted(exactly(sent.source, bytes), account.part(), deps.payloads.streamBytes);
  await deps.payloads.writeStream({ kind: 'upload', id }, source).finally(account.close);
}

/** The same bytes; throws before the end unless there are exactly so many, so that nothing else is ever stored. */
async function* exactly(source: AsyncIterable<Uint8Array>, bytes: number): AsyncGenerator<Uint8Array> {
  let length = 0;
  try {
    for await (const chunk of source) {
      length += chunk.byteLength;
      if (length > bytes) break;
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError) throw error;
    const message = `the connection ended after ${length} of ${bytes} bytes: ${reasonOf(error)}`;
    throw new ApiError('upload_incomplete', message, { cause: error });
  }
  if (length === bytes) return;
  const wrong = `the upload is of ${bytes} bytes, ${length > bytes ? 'more' : length} were sent`;
  throw new ApiError('invalid_value', wrong, { param: 'bytes' });
}
