import { isUuid } from '../../base/clock.ts';
import { ApiError, reasonOf } from '../../base/errors.ts';
import { inTurns, sha256InSteps } from '../../base/turns.ts';
import type { Db } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { findIdempotencyKey } from './record.sql.ts';
import type { Recorded } from './record.ts';
import { parseUploaded } from './submission.ts';
import { type SubmitDeps, type SubmitRequest, submitBatch } from './submit.ts';
import { findUpload, type UploadRow } from './uploads.sql.ts';

export interface SubmitUploadDeps extends SubmitDeps {
  payloads: SubmitDeps['payloads'] & Pick<PayloadStore, 'read' | 'size'>;
}

/** A submit whose requests were uploaded before: `body` is the one that names the upload. */
export interface SubmitUploadRequest
  extends Omit<SubmitRequest, 'upload' | 'shape' | 'items' | 'maxAttempts' | 'onLimit' | 'completionWindowSeconds'> {
  uploadId: string;
  maxItems: number;
  /** Uploads of other surfaces are larger. */
  maxBytes: number;
}

/**
 * Makes a batch of an upload. Its bytes are read once and written again under a key that its sender cannot write:
 * what was checked is what will run. One batch uses it up, in its own transaction; a submit that is refused does not.
 * Throws `not_found` (unknown, another's, expired), `body_too_large`, `upload_incomplete`, `upload_used`, and what a
 * submit throws.
 */
export async function submitUpload(deps: SubmitUploadDeps, request: SubmitUploadRequest): Promise<Recorded> {
  const key = { id: request.uploadId, owner: request.attribution.owner };
  const ref: PayloadRef = { kind: 'upload', id: request.uploadId };
  const upload = isUuid(key.id) ? await findUpload(deps.db, key) : null;
  if (upload === null) throw notFound();
  if (upload.used !== null) return repeated(deps.db, request, upload.used);
  if (upload.expired) throw notFound();
  if (upload.bytes > request.maxBytes) {
    const message = `request body too large: ${upload.bytes} bytes sent, the limit is ${request.maxBytes} bytes`;
    throw new ApiError('body_too_large', message, { param: 'upload_id' });
  }

  const body = await readUpload(deps.payloads, ref, upload.bytes);
  if (body === null) {
    // Another submit may have used it up meanwhile: then its bytes are gone with reason.
    const again = await findUpload(deps.db, key);
    if (again?.used) return repeated(deps.db, request, again.used);
    throw new ApiError('upload_incomplete', undefined, { param: 'upload_id' });
  }
  const sha256 = await inTurns(sha256InSteps(body), body.length);
  const made = await submitBatch(deps, {
    ...request,
    ...(await parseUploaded(body, request.body, request.maxItems)),
    body,
    bodySha256: await digestOf(sha256, request.body),
    upload: { id: key.id, sha256 },
  });
  if (!made.replayed) {
    await deps.payloads.delete([ref]).catch((error) => {
      deps.log.warn({ err: reasonOf(error), object: ref.id }, 'could not delete a used upload, the sweep does it');
    });
  }
  return made;
}

/** What an Idempotency-Key stands for: the uploaded bytes and the body that names them. */
function digestOf(uploadSha256: Buffer, outer: Buffer): Promise<Buffer> {
  return inTurns(sha256InSteps(uploadSha256, outer), outer.length);
}

/** The first answer again, for the submit that used the upload up and says so by its Idempotency-Key. */
async function repeated(db: Db, request: SubmitUploadRequest, used: NonNullable<UploadRow['used']>): Promise<Recorded> {
  const { idempotencyKey, surface, attribution } = request;
  const name = idempotencyKey === null ? null : { owner: attribution.owner, surface, key: idempotencyKey };
  const earlier = name && (await findIdempotencyKey(db, name));
  if (earlier === null) throw new ApiError('upload_used', undefined, { param: 'upload_id' });
  if (!earlier.body_sha256.equals(await digestOf(used.sha256, request.body)))
    throw new ApiError('idempotency_conflict');
  return { id: earlier.batch_id, totalItems: used.totalItems, replayed: true };
}

/** Null when it is not there, or not whole. */
async function readUpload(
  payloads: Pick<PayloadStore, 'read' | 'size'>,
  ref: PayloadRef,
  bytes: number,
): Promise<Buffer | null> {
  try {
    return (await payloads.size(ref)) === bytes ? await payloads.read(ref, 0, bytes) : null;
  } catch (error) {
    if (error instanceof PayloadNotFound) return null;
    throw error;
  }
}

function notFound(): ApiError {
  return new ApiError('not_found', 'no such upload', { param: 'upload_id' });
}
