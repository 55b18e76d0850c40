import { createHash, type Hash } from 'node:crypto';
import type { UploadKey } from '../../batch/submit/uploads.sql.ts';
import {
  deleteUsed,
  inUploadTurn,
  readUpload,
  type UploadTurnDeps,
  uploadUsed,
  useUpload,
} from '../../batch/submit/use-upload.ts';
import type { Database } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { fileTooLarge } from './file-object.ts';
import { type DiscardDeps, recordFile } from './record-file.ts';
import { type FileRow, insertFile, type NewFile } from './stored-files.sql.ts';

export interface FromUploadDeps extends DiscardDeps, UploadTurnDeps {
  db: Database;
  payloads: Pick<PayloadStore, 'writeStream' | 'delete' | 'stream' | 'size'>;
}

interface CopyOptions {
  maxFileBytes: number;
  /** Counts the bytes on their way into the store. */
  stored(bytes: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>;
}

const USED = 'upload was used before';

/**
 * Makes a file of an upload. One file uses it up, in the transaction that makes the row; what is refused does not. Throws
 * what `readUpload` throws, `upload_used`, `body_too_large`.
 */
export function fileOfUpload(
  deps: FromUploadDeps,
  file: Omit<NewFile, 'bytes'>,
  { uploadId, ...options }: CopyOptions & { uploadId: string },
): Promise<FileRow> {
  const key = { id: uploadId, owner: file.owner };
  return inUploadTurn(deps, key, () => fileFrom(deps, key, file, options));
}

async function fileFrom(
  deps: FromUploadDeps,
  key: UploadKey,
  file: Omit<NewFile, 'bytes'>,
  { maxFileBytes, stored }: CopyOptions,
): Promise<FileRow> {
  const digest = createHash('sha256');
  const bytes = await readUpload<never, number>(deps, key, {
    checkSize(length) {
      if (length > maxFileBytes) throw fileTooLarge(length, maxFileBytes, 'upload_id');
    },
    async whenUsed() {
      throw uploadUsed(USED); // only batches repeat answers
    },
    read: (source, length) =>
      deps.payloads.writeStream(file.object, stored(hashed(deps.payloads.stream(source, 0, length), digest))),
  });
  const row = await recordFile(deps, file.object, () =>
    deps.db.transaction(async (tx) => {
      const made = await insertFile(tx, { ...file, bytes });
      // A file counts as one item.
      await useUpload(tx, key, { batchId: made.id, sha256: digest.copy().digest(), totalItems: 1 }, USED);
      return made;
    }),
  );
  await deleteUsed(deps, key);
  return row;
}

async function* hashed(bytes: AsyncIterable<Buffer>, digest: Hash): AsyncGenerator<Buffer> {
  for await (const chunk of bytes) {
    digest.update(chunk);
    yield chunk;
  }
}
