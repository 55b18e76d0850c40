import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type RemoveFileDeps, removeFile } from '../lib/surfaces/files/remove-file.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `DELETE /v1/files/{id}` */
export function removeFileHandler(app: GateDeps & RemoveFileDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const id = pathParameter(event, 'id');
    await removeFile(app, owner, id);
    return json(200, { id, object: 'file', deleted: true });
  };
  return authenticated(app, handle);
}
