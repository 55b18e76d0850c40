import type { Db } from '../lib/db/database.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { fileObject } from '../lib/surfaces/files/file-object.ts';
import { requireFile } from '../lib/surfaces/files/find-file.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/files/{id}` */
export function getFileHandler(app: GateDeps & { db: Db }): ApiHandler {
  const handle: Authenticated = async (event, { owner }) =>
    json(200, fileObject(await requireFile(app.db, owner, pathParameter(event, 'id'))));
  return authenticated(app, handle);
}
