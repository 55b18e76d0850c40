import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { batchObject } from '../lib/surfaces/openai/batch-object.ts';
import { type CancelOpenaiDeps, cancelOpenaiBatch } from '../lib/surfaces/openai/cancel.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `POST /v1/batches/{id}/cancel` of a `batch_` id; a body is ignored, whatever its type. */
export function cancelOpenaiBatchHandler(app: GateDeps & CancelOpenaiDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { row, writing } = await cancelOpenaiBatch(app, owner, pathParameter(event, 'id'));
    return { ...json(200, batchObject(row)), batchId: row.id, ...(writing && { background: writing }) };
  };
  return authenticated(app, handle);
}
