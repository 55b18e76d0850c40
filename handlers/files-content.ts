import { ApiError } from '../lib/base/errors.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { requireFile } from '../lib/surfaces/files/find-file.ts';
import { parseRange } from '../lib/surfaces/files/range.ts';
import { objectOf, type ReadContentDeps, readContent } from '../lib/surfaces/files/read-content.ts';
import type { FileRow } from '../lib/surfaces/files/stored-files.sql.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export type FileContentApp = GateDeps & ReadContentDeps;

/** `GET /v1/files/{id}/content`, whole or the one range that is asked for; `If-Range` is not looked at: files never change. */
export function fileContentHandler(app: FileContentApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await requireFile(app.db, owner, pathParameter(event, 'id'));
    const range = parseRange(event.headers.range, row.bytes);
    if (range.kind === 'outside') throw outside(row.bytes);
    const { offset, length } = range.kind === 'part' ? range : { offset: 0, length: row.bytes };
    const headers = { ...headersOf(row), 'content-length': String(length) };
    const part = { 'content-range': `bytes ${offset}-${offset + length - 1}/${row.bytes}` };
    return {
      ...(range.kind === 'whole'
        ? { statusCode: 200, headers }
        : { statusCode: 206, headers: { ...headers, ...part } }),
      stream: readContent(app, row, offset, length),
      length,
      object: objectOf(row),
    };
  };
  return authenticated(app, handle);
}

function headersOf(row: FileRow): Record<string, string> {
  // A name may hold anything but control characters and lone surrogates (RFC 8187).
  const name = encodeURIComponent(row.filename).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
  return {
    'content-type': 'application/octet-stream',
    'content-disposition': `attachment; filename*=UTF-8''${name}`,
    'accept-ranges': 'bytes',
  };
}

function outside(bytes: number): ApiError {
  const headers = { 'content-range': `bytes */${bytes}` };
  return new ApiError('invalid_value', `Range begins after the ${bytes} bytes of the file`, {
    status: 416,
    param: 'Range',
    headers,
  });
}
