import { ApiError } from '../../base/errors.ts';
import { publicIds } from '../../model/public-id.ts';
import type { FileRow } from './stored-files.sql.ts';

/** The public id of a file, and the UUID in one: `file-` and the 32 hex digits of its UUID. */
export const { of: fileIdOf, parse: uuidOfFileId } = publicIds('file-');

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

/** The wire form of a file, its keys in the order of "File object" in docs/spec/openai-surface.md. */
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

/** "OpenAI files" in docs/spec/openai-surface.md: 200 MB. */
export const MAX_FILE_BYTES = 200 * 1024 * 1024;

/** The 413 of a file over the limit; `sent` is how much was announced, or null if nothing was. */
export function fileTooLarge(sent: number | null, maxBytes: number, param = 'file'): ApiError {
  const size = sent === null ? `more than ${maxBytes} bytes` : `${sent} bytes`;
  const message = `file too large: ${size} sent, the limit is ${maxBytes} bytes`;
  return new ApiError('body_too_large', message, { status: 413, param });
}
