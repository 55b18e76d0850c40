import { createHash, type Hash } from 'node:crypto';
import { isUuid } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import { findUpload, takeUpload } from '../../batch/submit/uploads.sql.ts';
import type { Database } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { fileTooLarge } from './file-object.ts';
import { type DiscardDeps, discard, recordFile } from './record-file.ts';
import { type FileRow, insertFile, type NewFile } from './stored-files.sql.ts';

export interface FromUploadDeps extends DiscardDeps {
  db: Database;
  payloads: Pick<PayloadStore, 'writeStream' | 'delete' | 'stream' | 'size'>;
}

/**
 * Makes a file of an upload. Its bytes are copied to a key that its sender cannot write: what a batch is validated by is
 * what will run. One file uses it up, in the transaction that makes the row; what is refused does not. Throws `not_found`
 * (unknown, another's, expired), `upload_incomplete`, `upload_used`, `body_too_large`.
 */
export async function fileOfUpload(
  deps: FromUploadDeps,
  file: Omit<NewFile, 'bytes'>,
  { uploadId, maxFileBytes }: { uploadId: string; maxFileBytes: number },
): Promise<FileRow> {
  const key = { id: uploadId, owner: file.owner };
  const upload = isUuid(uploadId) ? await findUpload(deps.db, key) : null;
  if (upload === null) throw notFound();
  if (upload.used !== null) throw used();
  if (upload.expired) throw notFound();
  if (upload.bytes > maxFileBytes) throw fileTooLarge(upload.bytes, maxFileBytes, 'upload_id');

  const source: PayloadRef = { kind: 'upload', id: uploadId };
  const digest = createHash('sha256');
  try {
    if ((await deps.payloads.size(source)) !== upload.bytes) throw incomplete();
    await deps.payloads.writeStream(file.object, hashed(deps.payloads.stream(source, 0, upload.bytes), digest));
  } catch (error) {
    // Another call may have used it up meanwhile: then its bytes are gone with reason.
    if ((await findUpload(deps.db, key))?.used) throw used();
    throw error instanceof PayloadNotFound ? incomplete() : error;
  }
  const row = await recordFile(deps, file.object, () =>
    deps.db.transaction(async (tx) => {
      const made = await insertFile(tx, { ...file, bytes: upload.bytes });
      // The row's lock makes a second use of it wait for this one. A file counts as one item: only batches repeat answers.
      const by = { batchId: made.id, sha256: digest.copy().digest(), totalItems: 1 };
      if (!(await takeUpload(tx, key, by))) throw used();
      return made;
    }),
  );
  await discard(deps, source);
  return row;
}

async function* hashed(bytes: AsyncIterable<Buffer>, digest: Hash): AsyncGenerator<Buffer> {
  for await (const chunk of bytes) {
    digest.update(chunk);
    yield chunk;
  }
}

function notFound(): ApiError {
  return new ApiError('not_found', 'no such upload', { param: 'upload_id' });
}

function used(): ApiError {
  return new ApiError('upload_used', 'upload was used before', { param: 'upload_id' });
}

function incomplete(): ApiError {
  return new ApiError('upload_incomplete', undefined, { param: 'upload_id' });
}
