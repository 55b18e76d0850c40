import { isUuid } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import { findIdempotencyKey, type IdempotencyName } from '../../batch/submit/record.sql.ts';
import type { Recorded } from '../../batch/submit/record.ts';
import { findUpload } from '../../batch/submit/uploads.sql.ts';
import type { Db } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';

export interface OpenUploadDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'stream' | 'size'>;
}

/** How a create says that it is an earlier one again: the key, and the digest of it with the uploaded bytes' SHA-256. */
export interface UploadReplay {
  idempotency: IdempotencyName | null;
  digestOf(uploaded: Buffer): Buffer;
}

/**
 * The bytes of an upload that may be used, as a stream; or the first answer again, for the create that used it up and
 * says so by its Idempotency-Key. Throws `not_found` (unknown, another's, expired), `upload_incomplete`, `upload_used`,
 * `idempotency_conflict`; the stream throws the first two, too.
 */
export async function openUpload(
  deps: OpenUploadDeps,
  key: { id: string; owner: string },
  replay: UploadReplay,
): Promise<Recorded | { bytes(): AsyncIterable<Buffer> }> {
  const ref: PayloadRef = { kind: 'upload', id: key.id };
  const upload = isUuid(key.id) ? await findUpload(deps.db, key) : null;
  if (upload === null) throw new ApiError('not_found', 'no such upload', { param: 'upload_id' });
  if (upload.used !== null) return repeated(deps.db, upload.used, replay);
  if (upload.expired) throw new ApiError('not_found', 'no such upload', { param: 'upload_id' });

  if ((await sizeOf(deps.payloads, ref)) !== upload.bytes) {
    // Another create may have used it up meanwhile: then its bytes are gone with reason.
    const again = await findUpload(deps.db, key);
    if (again?.used) return repeated(deps.db, again.used, replay);
    throw incomplete();
  }
  return {
    async *bytes() {
      try {
        yield* deps.payloads.stream(ref, 0, upload.bytes);
      } catch (error) {
        throw error instanceof PayloadNotFound ? incomplete(error) : error;
      }
    },
  };
}

async function repeated(
  db: Db,
  used: { sha256: Buffer; totalItems: number },
  { idempotency, digestOf }: UploadReplay,
): Promise<Recorded> {
  const earlier = idempotency && (await findIdempotencyKey(db, idempotency));
  if (earlier === null) throw new ApiError('upload_used', undefined, { param: 'upload_id' });
  if (!earlier.body_sha256.equals(digestOf(used.sha256))) throw new ApiError('idempotency_conflict');
  return { id: earlier.batch_id, totalItems: used.totalItems, replayed: true };
}

/** Null when it is not there. */
async function sizeOf(payloads: Pick<PayloadStore, 'size'>, ref: PayloadRef): Promise<number | null> {
  try {
    return await payloads.size(ref);
  } catch (error) {
    if (error instanceof PayloadNotFound) return null;
    throw error;
  }
}

function incomplete(cause?: unknown): ApiError {
  return new ApiError('upload_incomplete', undefined, { param: 'upload_id', cause });
}
