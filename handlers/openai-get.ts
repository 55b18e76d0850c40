import type { Db } from '../lib/db/database.ts';
import { type ApiHandler, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { batchObject } from '../lib/surfaces/openai/batch-object.ts';
import { requireBatch } from '../lib/surfaces/openai/find-batch.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/batches/{id}` of a `batch_` id */
export function getOpenaiBatchHandler(app: GateDeps & { db: Db }): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await requireBatch(app.db, owner, pathParameter(event, 'id'));
    return { ...json(200, batchObject(row)), batchId: row.id };
  };
  return authenticated(app, handle);
}
