import type { Db } from '../../db/database.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../../payloads/payload-store.ts';
import { fileIdOf } from './file-object.ts';
import { noSuchFile } from './find-file.ts';
import { type FileRow, findFile } from './stored-files.sql.ts';

export interface ReadContentDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'stream'>;
}

/** The object of a file's bytes. */
export function objectOf(row: FileRow): PayloadRef {
  return { kind: row.object_kind, id: row.object_id };
}

/** `length` bytes of a file from `offset`; throws `not_found` when it was deleted since its row was read. */
export async function* readContent(
  { db, payloads }: ReadContentDeps,
  row: FileRow,
  offset: number,
  length: number,
): AsyncGenerator<Buffer> {
  try {
    yield* payloads.stream(objectOf(row), offset, length);
  } catch (error) {
    if (error instanceof PayloadNotFound && (await findFile(db, row)) === null) throw noSuchFile(fileIdOf(row.id));
    throw error;
  }
}
