import { ApiError, cutText } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import { findOpenaiBatch, type OpenaiBatchRow } from './openai-batches.sql.ts';

const PUBLIC = /^batch_([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/;

/** The id that callers see: `batch_` and the 32 hex digits of the batch's UUID. */
export function publicBatchId(id: string): string {
  return `batch_${id.replaceAll('-', '')}`;
}

/** The UUID of a public id; null for text that is none. */
export function parseBatchId(text: string): string | null {
  const match = PUBLIC.exec(text);
  return match === null ? null : match.slice(1).join('-');
}

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
