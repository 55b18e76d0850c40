import { ApiError, cutText } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import { uuidOfFileId } from './file-object.ts';
import { type FileRow, findFile } from './stored-files.sql.ts';

/** The owner's file of a public id; throws `not_found` for another's, an unknown, an expired or a malformed one alike. */
export async function requireFile(db: Db, owner: string, fileId: string): Promise<FileRow> {
  const id = uuidOfFileId(fileId);
  const row = id === null ? null : await findFile(db, { owner, id });
  if (row === null) throw noSuchFile(fileId);
  return row;
}

/** The 404 of a file, as OpenAI words it. `param` is the parameter that named it. */
export function noSuchFile(fileId: string, param = 'id'): ApiError {
  return new ApiError('not_found', `No such File object: ${cutText(fileId)}`, { param });
}
