import { isUuid } from '../lib/clock.ts';
import { ApiError } from '../lib/errors.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export interface CancelApp extends GateDeps {
  /** Cancels a batch of this owner; throws `not_found` when there is none. Idempotent. */
  cancelBatch(owner: string, surface: string, id: string): Promise<unknown>;
}

/** `POST /v1/batches/{id}/cancel` */
export function cancel(app: CancelApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const id = pathParameter(event, 'id');
    if (!isUuid(id)) throw new ApiError('not_found');
    await app.cancelBatch(owner, 'relay', id);
    return { ...json(200, { status: 'cancelled' }), batchId: id };
  };
  return authenticated(app, handle);
}
