import { fileIdOf } from './file-id.ts';
import type { FileRow } from './stored-files.sql.ts';

/** A file as OpenAI clients see it. Times are Unix seconds; what is absent is null, the keys stay. */
export interface FileObject {
  id: string;
  object: 'file';
  bytes: number;
  created_at: number;
  filename: string;
  purpose: FileRow['purpose'];
  status: 'processed';
  expires_at: number | null;
  status_details: null;
}

/** The wire form of a file, its keys in the order of front-doors section 2. */
export function fileObject(row: FileRow): FileObject {
  return {
    id: fileIdOf(row.id),
    object: 'file',
    bytes: row.bytes,
    created_at: unixSeconds(row.created_at),
    filename: row.filename,
    purpose: row.purpose,
    status: 'processed',
    expires_at: row.expires_at && unixSeconds(row.expires_at),
    status_details: null,
  };
}

function unixSeconds(time: Date): number {
  return Math.floor(time.getTime() / 1000);
}
