import { z } from 'zod';
import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import type { Db } from '../lib/db/database.ts';
import { idempotencyKeyOf, refuseEncodedBody, whole } from '../lib/http/contracts.ts';
import { bodyOf, pathParameter } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { batchObject } from '../lib/surfaces/openai/batch-object.ts';
import { type CancelOpenaiDeps, cancelOpenaiBatch } from '../lib/surfaces/openai/cancel.ts';
import { type CreateDeps, createBatch } from '../lib/surfaces/openai/create.ts';
import { MAX_CREATE_BYTES } from '../lib/surfaces/openai/create-request.ts';
import { requireBatch } from '../lib/surfaces/openai/find-batch.ts';
import { listBatchObjects } from '../lib/surfaces/openai/list.ts';
import { type Endpoint, endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// OpenAI's batches: below `/openai` by themselves, at `/v1/batches` beside the native API (by-surface.ts).

/** All that they need of the application. */
export type OpenaiApp = CreateOpenaiApp & CancelOpenaiDeps;

interface CreateOpenaiApp extends GateDeps, CreateDeps {
  /** The catalogue in use. */
  catalog(): Catalog;
  /** A batch waits for its validation: sets it going. Never rejects; what it misses the sweep finds. */
  wakeValidator(): void | Promise<void>;
}

export const createOpenaiBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/batches', body: 'read', maxBytes: MAX_CREATE_BYTES, lambda: 'openai' },
  async (app: CreateOpenaiApp, caller, event) => {
    const catalog = app.catalog();
    const attribution = attributionOf(caller, governingPolicy(caller, catalog), catalog);
    refuseEncodedBody(event.headers);
    const body = bodyOf(event);
    const { row, replayed } = await createBatch(app, {
      attribution,
      body,
      idempotencyKey: idempotencyKeyOf(event.headers),
    });
    if (!replayed) await app.wakeValidator();
    const answer = json(200, batchObject(row), replayed ? { 'idempotency-replayed': 'true' } : {});
    return { ...answer, batchId: row.id };
  },
);

/** `after` is looked up. */
const LIST_QUERY = z.object({ limit: whole(1, 100).default(20), after: z.string().optional() });

export const listOpenaiBatchesEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches', lambda: 'openai', query: LIST_QUERY },
  async (app: GateDeps & { db: Db }, { owner }, _event, { after, limit }) =>
    json(200, await listBatchObjects(app.db, { owner, after: after ?? null, limit })),
);

export const getOpenaiBatchEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches/{id}', lambda: 'openai' },
  async (app: GateDeps & { db: Db }, { owner }, event) => {
    const row = await requireBatch(app.db, owner, pathParameter(event, 'id'));
    return { ...json(200, batchObject(row)), batchId: row.id };
  },
);

/** A body is ignored, whatever its type. */
export const cancelOpenaiBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/batches/{id}/cancel', lambda: 'openai' },
  async (app: GateDeps & CancelOpenaiDeps, { owner }, event) => {
    const { row, writing } = await cancelOpenaiBatch(app, owner, pathParameter(event, 'id'));
    return { ...json(200, batchObject(row)), batchId: row.id, ...(writing && { background: writing }) };
  },
);

export const OPENAI_BATCH_ENDPOINTS: readonly Endpoint<OpenaiApp>[] = [
  createOpenaiBatchEndpoint,
  listOpenaiBatchesEndpoint,
  getOpenaiBatchEndpoint,
  cancelOpenaiBatchEndpoint,
];
