import { type RemoveDeps, removeBatch } from '../lib/batch/remove.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `DELETE /v1/batches/{id}` */
export function remove(app: GateDeps & RemoveDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const id = pathParameter(event, 'id');
    await removeBatch(app, { surface: 'relay', owner, id });
    return { ...json(200, { id, deleted: true }), batchId: id };
  };
  return authenticated(app, handle);
}
