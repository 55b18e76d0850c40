import { ApiError, cutText } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import { publicIds } from '../../model/public-id.ts';
import { findOpenaiBatch, type OpenaiBatchRow } from './openai-batches.sql.ts';

/** The id that callers see, and the UUID in one: `batch_` and the 32 hex digits of the batch's UUID. */
export const { of: publicBatchId, parse: parseBatchId } = publicIds('batch_');

/** The owner's batch of a public id; throws `not_found` for another's, an unknown and a malformed one alike. */
export async function requireBatch(db: Db, owner: string, publicId: string): Promise<OpenaiBatchRow> {
  const id = parseBatchId(publicId);
  const row = id === null ? null : await findOpenaiBatch(db, { owner, id });
  if (row === null) throw noSuchBatch(publicId);
  return row;
}

/** The 404 of a batch, as OpenAI words it. `param` is the parameter that named it. */
export function noSuchBatch(publicId: string, param = 'id'): ApiError {
  return new ApiError('not_found', `No batch found with id '${cutText(publicId)}'.`, { param });
}
