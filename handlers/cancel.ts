import { isUuid } from '../lib/base/clock.ts';
import { ApiError } from '../lib/base/errors.ts';
import { type CancelDeps, cancelBatch } from '../lib/batch/cancel.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export type CancelApp = GateDeps & CancelDeps;

/** `POST /v1/batches/{id}/cancel` */
export function cancel(app: CancelApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const id = pathParameter(event, 'id');
    if (!isUuid(id) || !(await cancelBatch(app, owner, 'relay', id))) throw new ApiError('not_found');
    return { ...json(200, { status: 'cancelled' }), batchId: id };
  };
  return authenticated(app, handle);
}
