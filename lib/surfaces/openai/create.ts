import { hash } from 'node:crypto';
import { type Clock, uuidv7 } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import { claimKey, findReplay, type PreparedBatch } from '../../batch/submit/record.ts';
import type { Database, Db } from '../../db/database.ts';
import { isConnectionError } from '../../db/errors.ts';
import type { Attribution } from '../../model/batch.ts';
import { uuidOfFileId } from '../files/file-object.ts';
import { noSuchFile } from '../files/find-file.ts';
import { holdFile } from '../files/stored-files.sql.ts';
import { type CreateRequest, parseCreate } from './create-request.ts';
import { noSuchBatch, publicBatchId } from './find-batch.ts';
import { findOpenaiBatch, insertOpenaiBatch, type OpenaiBatchRow } from './openai-batches.sql.ts';

export interface CreateDeps {
  db: Database;
  clock: Clock;
}

/** A create as it came. */
export interface Create {
  attribution: Attribution;
  body: Buffer;
  /** 1-255 printable ASCII characters; null without one. */
  idempotencyKey: string | null;
}

export interface Created {
  row: OpenaiBatchRow;
  /** True when an earlier create of the same Idempotency-Key made the batch. */
  replayed: boolean;
}

/**
 * Makes a batch that waits for its validation; nothing of the file is read yet. The row and the Idempotency-Key are one
 * transaction, which also holds the file: deleting it afterwards does not take its bytes away. Throws 400 as `parseCreate`
 * does, `not_found` for a file that is not the caller's, `invalid_value` for one of another purpose, `idempotency_conflict`.
 */
export async function createBatch(deps: CreateDeps, create: Create): Promise<Created> {
  const request = parseCreate(create.body);
  const { owner } = create.attribution;
  const id = uuidv7(deps.clock.now());
  const idempotency = idempotencyOf(create);
  // Asked before the file is: a repeated create gets its answer though the file may be gone.
  const earlier = idempotency && (await findReplay(deps.db, idempotency, 0));
  if (earlier) return { row: await found(deps.db, owner, earlier.id), replayed: true };

  let winner = id;
  try {
    winner = await deps.db.transaction(async (tx) => {
      const other =
        idempotency && (await claimKey(tx, { ...idempotency, row: { body_sha256: idempotency.sha256, batch_id: id } }));
      if (other === null) {
        await insert(tx, id, create.attribution, request);
        return id;
      }
      if (!other.body_sha256.equals(idempotency!.sha256)) throw new ApiError('idempotency_conflict');
      return other.batch_id;
    });
  } catch (error) {
    if (!isConnectionError(error)) throw error;
    // The answer to COMMIT may be what was lost: then the batch is there.
    if ((await findOpenaiBatch(deps.db, { owner, id })) === null) throw error;
  }
  return { row: await found(deps.db, owner, winner), replayed: winner !== id };
}

async function insert(tx: Db, id: string, attribution: Attribution, request: CreateRequest): Promise<void> {
  const { inputFileId } = request;
  const uuid = uuidOfFileId(inputFileId);
  const file = uuid === null ? null : await holdFile(tx, { owner: attribution.owner, id: uuid });
  if (file === null) throw noSuchFile(inputFileId, 'input_file_id');
  if (file.purpose !== 'batch') {
    const message = `Invalid 'input_file_id': expected a file with purpose 'batch', but got '${file.purpose}' instead.`;
    throw new ApiError('invalid_value', message, { param: 'input_file_id' });
  }
  const { endpoint, metadata, outputExpiresSeconds } = request;
  await insertOpenaiBatch(tx, {
    id,
    attribution,
    endpoint,
    inputFileId: file.id,
    objectId: file.object_id,
    metadata,
    outputExpiresSeconds,
  });
}

/** Of a replay only the retention can have taken it. */
async function found(db: Db, owner: string, id: string): Promise<OpenaiBatchRow> {
  const row = await findOpenaiBatch(db, { owner, id });
  if (row === null) throw noSuchBatch(publicBatchId(id));
  return row;
}

function idempotencyOf({ attribution, body, idempotencyKey }: Create): PreparedBatch['idempotency'] {
  if (idempotencyKey === null) return null;
  const name = { owner: attribution.owner, surface: 'openai', key: idempotencyKey };
  return { name, sha256: hash('sha256', body, 'buffer') };
}
