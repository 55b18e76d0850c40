import { ApiError } from '../lib/base/errors.ts';
import { PAGE_BYTES } from '../lib/batch/results/results.ts';
import { type ApiHandler, type ApiResult, pathParameter } from '../lib/http/event.ts';
import type { PayloadStore } from '../lib/payloads/payload-store.ts';
import { requireFile } from '../lib/surfaces/files/find-file.ts';
import { parseRange } from '../lib/surfaces/files/range.ts';
import { objectOf, type ReadContentDeps, readContent } from '../lib/surfaces/files/read-content.ts';
import type { FileRow } from '../lib/surfaces/files/stored-files.sql.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** How long a link to a file is good, as that to a results document. */
const LINK_SECONDS = 900;

export interface FileContentApp extends GateDeps, ReadContentDeps {
  payloads: ReadContentDeps['payloads'] & Pick<PayloadStore, 'link'>;
  /** True in the container. On Lambda what does not fit into one answer is fetched from the store by a signed URL. */
  streaming: boolean;
}

/** `GET /v1/files/{id}/content`, whole or the one range that is asked for; `If-Range` is not looked at: files never change. */
export function fileContentHandler(app: FileContentApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await requireFile(app.db, owner, pathParameter(event, 'id'));
    const range = parseRange(event.headers.range, row.bytes);
    if (range.kind === 'outside') throw outside(row.bytes);
    const { offset, length } = range.kind === 'part' ? range : { offset: 0, length: row.bytes };
    const headers = { ...headersOf(row), 'content-length': String(length) };
    const head: ApiResult =
      range.kind === 'whole'
        ? { statusCode: 200, headers }
        : {
            statusCode: 206,
            headers: { ...headers, 'content-range': `bytes ${offset}-${offset + length - 1}/${row.bytes}` },
          };
    if (app.streaming) return { ...head, stream: readContent(app, row, offset, length) };
    if (event.requestContext.http.method === 'HEAD') return head;
    if (length > PAGE_BYTES && app.payloads.link !== undefined) {
      // A range that was asked for is asked of the store again: clients keep the header across a redirect.
      return { statusCode: 303, headers: { location: await app.payloads.link(objectOf(row), LINK_SECONDS) } };
    }
    const chunks: Buffer[] = [];
    for await (const chunk of readContent(app, row, offset, length)) chunks.push(chunk);
    return { ...head, isBase64Encoded: true, body: Buffer.concat(chunks, length).toString('base64') };
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
