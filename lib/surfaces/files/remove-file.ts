import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Db } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { deleteUnused } from './delete-unused.ts';
import { uuidOfFileId } from './file-id.ts';
import { noSuchFile } from './find-file.ts';
import { deleteFile } from './stored-files.sql.ts';

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
