import { PAGE_BYTES } from '../../batch/results/results.ts';
import type { Db } from '../../db/database.ts';
import { fileIdOf, fileObject, uuidOfFileId } from './file-object.ts';
import { noSuchFile } from './find-file.ts';
import { type FilePurpose, listFiles } from './stored-files.sql.ts';

export interface FileQuery {
  owner: string;
  /** Null: of every purpose. */
  purpose: FilePurpose | null;
  /** Id of the last file of the page before; null begins. */
  after: string | null;
  limit: number;
  order: 'asc' | 'desc';
}

/**
 * A page of an owner's files as JSON, by time of creation. It ends at `limit` or at 4.5 MB, which is what an answer on
 * Lambda holds. Ids tell the time, so `after` may be a file that is deleted by now: clients delete while they page. Throws
 * `not_found` for an `after` that is not the id of a file.
 */
export async function listFilesJson(db: Db, { owner, purpose, after, limit, order }: FileQuery): Promise<string> {
  const cursor = after === null ? null : uuidOfFileId(after);
  if (after !== null && cursor === null) throw noSuchFile(after, 'after');
  const rows = await listFiles(db, order, { owner, purpose, after: cursor, limit: limit + 1 });
  const objects: string[] = [];
  let bytes = 0;
  for (const row of rows.slice(0, limit)) {
    const text = JSON.stringify(fileObject(row));
    bytes += Buffer.byteLength(text) + 1;
    if (bytes > PAGE_BYTES) break;
    objects.push(text);
  }
  const [first, last] = [rows[0], rows[objects.length - 1]].map((row) => JSON.stringify(row ? fileIdOf(row.id) : null));
  const more = rows.length > objects.length;
  return `{"object":"list","data":[${objects.join(',')}],"first_id":${first},"last_id":${last},"has_more":${more}}`;
}
