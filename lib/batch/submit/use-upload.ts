import { isUuid } from '../../base/clock.ts';
import { ApiError, reasonOf } from '../../base/errors.ts';
import type { KeyedTurns } from '../../base/keyed-turns.ts';
import type { Log } from '../../base/log.ts';
import { inTurns, sha256InSteps } from '../../base/turns.ts';
import type { Db } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { findIdempotencyKey, type IdempotencyName } from './record.sql.ts';
import type { Recorded } from './record.ts';
import { findUpload, takeUpload, type UploadKey, type UploadRow } from './uploads.sql.ts';

/** Where calls wait that name one upload: its bytes are in memory, or on their way, once. */
export interface UploadTurnDeps {
  uploadTurns: KeyedTurns;
}

/** Runs the use of an upload when no other call of this process uses it. A later call then finds that it was used. */
export function inUploadTurn<T>({ uploadTurns }: UploadTurnDeps, key: UploadKey, use: () => Promise<T>): Promise<T> {
  return uploadTurns.run(`${key.owner}/${key.id}`, use);
}

interface ReadUploadDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'size'>;
}

/** The batch that used an upload. */
type UploadUse = NonNullable<UploadRow['used']>;

/** How a surface reads an upload. */
export interface UploadReader<Again, Bytes> {
  /** Throws when the surface does not take so many bytes. */
  checkSize?(bytes: number): void;
  /** The answer of a call that comes after the upload was used. */
  whenUsed(use: UploadUse): Promise<Again>;
  /** Reads the bytes; what it throws ends the call, except `PayloadNotFound`. */
  read(ref: PayloadRef, bytes: number): Promise<Bytes>;
}

/**
 * Reads an upload that may be used. Its bytes are read once, and have to be written again under a key that their sender
 * cannot write: what was checked is what will run. Throws `not_found` (unknown, another's, expired) and
 * `upload_incomplete`, and what the reader throws.
 */
export async function readUpload<Again, Bytes>(
  { db, payloads }: ReadUploadDeps,
  key: UploadKey,
  reader: UploadReader<Again, Bytes>,
): Promise<Again | Bytes> {
  const upload = isUuid(key.id) ? await findUpload(db, key) : null;
  if (upload === null) throw noSuchUpload();
  if (upload.used !== null) return reader.whenUsed(upload.used);
  if (upload.expired) throw noSuchUpload();
  reader.checkSize?.(upload.bytes);

  const ref: PayloadRef = { kind: 'upload', id: key.id };
  let cause: unknown;
  try {
    if ((await payloads.size(ref)) === upload.bytes) return await reader.read(ref, upload.bytes);
  } catch (error) {
    if (!(error instanceof PayloadNotFound)) throw error;
    cause = error;
  }
  // Another call may have used it up meanwhile: then its bytes were deleted with reason.
  const again = await findUpload(db, key);
  if (again?.used) return reader.whenUsed(again.used);
  throw new ApiError('upload_incomplete', undefined, { param: 'upload_id', cause });
}

/**
 * Uses an upload up, in the transaction that makes what is made of it. Only one call succeeds: the row's lock makes
 * another one wait for this one. Throws `upload_used`, with `message` where no batch is made.
 */
export async function useUpload(tx: Db, key: UploadKey, use: UploadUse, message?: string): Promise<void> {
  if (!(await takeUpload(tx, key, use))) throw uploadUsed(message);
}

/** Deletes the bytes of an upload that was used. Best effort: the sweep deletes what stays behind. */
export async function deleteUsed(
  { payloads, log }: { payloads: Pick<PayloadStore, 'delete'>; log: Log },
  { id }: UploadKey,
): Promise<void> {
  await payloads.delete([{ kind: 'upload', id }]).catch((error) => {
    log.warn({ err: reasonOf(error), object: id }, 'could not delete a used upload, the sweep does it');
  });
}

/** The digest for an Idempotency-Key when the body names an upload: of the uploaded bytes, and of that body. */
export function digestOfUpload(uploadSha256: Buffer, body: Buffer): Promise<Buffer> {
  return inTurns(sha256InSteps(uploadSha256, body), body.length);
}

/**
 * The first answer again, for the submit that used the upload up and says so by its Idempotency-Key. `digestOf` makes of
 * the uploaded bytes' SHA-256 what the key has to stand for. Throws `upload_used`, `idempotency_conflict`.
 */
export async function repeatUse(
  db: Db,
  use: UploadUse,
  idempotency: IdempotencyName | null,
  digestOf: (uploadSha256: Buffer) => Promise<Buffer>,
): Promise<Recorded> {
  const earlier = idempotency && (await findIdempotencyKey(db, idempotency));
  if (earlier === null) throw uploadUsed();
  if (!earlier.body_sha256.equals(await digestOf(use.sha256))) throw new ApiError('idempotency_conflict');
  return { id: earlier.batch_id, totalItems: use.totalItems, replayed: true };
}

/** The 409 of an upload that was used, with `message` where no batch is made. */
export function uploadUsed(message?: string): ApiError {
  return new ApiError('upload_used', message, { param: 'upload_id' });
}

function noSuchUpload(): ApiError {
  return new ApiError('not_found', 'no such upload', { param: 'upload_id' });
}
