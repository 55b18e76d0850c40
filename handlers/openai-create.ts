import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import { idempotencyKeyOf, refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, bodyOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json } from '../lib/http/render.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { batchObject } from '../lib/surfaces/openai/batch-object.ts';
import { type CreateDeps, createBatch } from '../lib/surfaces/openai/create.ts';
import { MAX_CREATE_BYTES } from '../lib/surfaces/openai/create-request.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export interface CreateOpenaiBatchApp extends GateDeps, CreateDeps {
  /** The catalogue in use. */
  catalog(): Catalog;
  /** A batch waits for its validation: sets it going. Never rejects; what it misses the sweep finds. */
  wakeValidator(): void | Promise<void>;
}

/** `POST /v1/batches` with `input_file_id` or `endpoint` */
export function createOpenaiBatchHandler(app: CreateOpenaiBatchApp): ApiHandler {
  const handle: Authenticated = async (event, caller) => {
    const catalog = app.catalog();
    const attribution = attributionOf(caller, governingPolicy(caller, catalog), catalog);
    refuseEncodedBody(event.headers);
    const body = bodyOf(event);
    if (body.length > MAX_CREATE_BYTES) throw bodyTooLarge(`${body.length} bytes`, MAX_CREATE_BYTES);
    const { row, replayed } = await createBatch(app, {
      attribution,
      body,
      idempotencyKey: idempotencyKeyOf(event.headers),
    });
    if (!replayed) await app.wakeValidator();
    const answer = json(200, batchObject(row), replayed ? { 'idempotency-replayed': 'true' } : {});
    return { ...answer, batchId: row.id };
  };
  return authenticated(app, handle);
}
