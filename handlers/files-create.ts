import { refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, streamOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type CreateFileDeps, createFile } from '../lib/surfaces/files/create-file.ts';
import { fileObject, MAX_FILE_BYTES } from '../lib/surfaces/files/file-object.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `POST /v1/files`. Its route streams the body; on Lambda the event holds all of it, at most 6 MB. */
export function createFileHandler(app: GateDeps & CreateFileDeps, maxFileBytes = MAX_FILE_BYTES): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    refuseEncodedBody(event.headers);
    const row = await createFile(app, {
      owner,
      contentType: event.headers['content-type'],
      contentLength: lengthOf(event.headers['content-length']),
      body: streamOf(event),
      maxFileBytes,
    });
    return json(200, fileObject(row));
  };
  return authenticated(app, handle);
}

function lengthOf(header: string | undefined): number | null {
  return header !== undefined && /^\d+$/.test(header) ? Number(header) : null;
}
