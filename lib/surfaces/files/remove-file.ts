import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { referencedObjects } from '../../batch/object-references.sql.ts';
import type { Db } from '../../db/database.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { uuidOfFileId } from './file-object.ts';
import { noSuchFile } from './find-file.ts';
import { deleteExpiredFiles, deleteFile } from './stored-files.sql.ts';

export interface RemoveFileDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'delete'>;
  log: Log;
}

/** Deletes a file; its object goes at once unless a batch uses it. Throws `not_found`. */
export async function removeFile(deps: RemoveFileDeps, owner: string, fileId: string): Promise<void> {
  const id = uuidOfFileId(fileId);
  const object = id === null ? null : await deleteFile(deps.db, { owner, id });
  if (object === null) throw noSuchFile(fileId);
  await deleteUnused(deps.db, deps.payloads, [object]).catch((error) => {
    deps.log.warn({ err: reasonOf(error), object: object.id }, 'could not delete the object of a deleted file');
  });
}

/**
 * Deletes those objects of files deleted before that no batch refers to; a batch keeps its input, and the orphan sweep
 * deletes it after the batch was deleted. Must not run in the transaction that deleted the rows: it has to see what was
 * committed while that waited.
 */
async function deleteUnused(
  db: Db,
  payloads: Pick<PayloadStore, 'delete'>,
  objects: readonly PayloadRef[],
): Promise<void> {
  for (const kind of ['input', 'output'] as const) {
    const ids = objects.filter((object) => object.kind === kind).map(({ id }) => id);
    if (ids.length === 0) continue;
    const used = await referencedObjects(db, kind, ids);
    await payloads.delete(ids.filter((id) => !used.has(id)).map((id) => ({ kind, id })));
  }
}

const AT_ONCE = 500;

/**
 * Deletes the files that have expired, and their objects unless a batch uses them; returns how many files. No look-up finds
 * an expired file before that either.
 */
export async function purgeExpiredFiles(db: Db, payloads: Pick<PayloadStore, 'delete'>): Promise<number> {
  let purged = 0;
  let found: number;
  do {
    const objects = await deleteExpiredFiles(db, AT_ONCE);
    await deleteUnused(db, payloads, objects);
    found = objects.length;
    purged += found;
  } while (found === AT_ONCE);
  return purged;
}
