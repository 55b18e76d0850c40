import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import { ApiError } from '../lib/base/errors.ts';
import { idempotencyKeyOf, recordedHeader, refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiEvent, type ApiHandler, streamOf } from '../lib/http/event.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { type CreateDeps, createMessageBatch } from '../lib/surfaces/anthropic/create.ts';
import { findMessageBatch } from '../lib/surfaces/anthropic/message-batches.sql.ts';
import { type AnthropicApp, messageBatchAnswer } from './anthropic-app.ts';
import { type Authenticated, authenticated } from './middleware.ts';

export interface AnthropicCreateApp extends AnthropicApp, CreateDeps {
  db: CreateDeps['db'];
  /** The catalogue in use. */
  catalog(): Catalog;
}

/** `POST /v1/messages/batches`; its body is a stream. */
export function createMessageBatchHandler(app: AnthropicCreateApp): ApiHandler {
  const handle: Authenticated = async (event, caller) => {
    const catalog = app.catalog();
    const attribution = attributionOf(caller, governingPolicy(caller, catalog), catalog);
    refuseEncodedBody(event.headers);
    const made = await createMessageBatch(app, {
      attribution,
      source: bodyOfClient(event),
      announcedBytes: announcedBytes(event),
      idempotencyKey: idempotencyKeyOf(event.headers),
      anthropicVersion: recordedHeader(event.headers, 'anthropic-version'),
      anthropicBeta: recordedHeader(event.headers, 'anthropic-beta'),
    });
    const row = await findMessageBatch(app.db, { owner: caller.owner, id: made.id });
    if (row === null) {
      throw new ApiError('conflict', 'the batch that this Idempotency-Key stands for was deleted');
    }
    return messageBatchAnswer(app, event, row, made.replayed ? { 'idempotency-replayed': 'true' } : {});
  };
  return authenticated(app, handle);
}

/** A client that goes away in mid-body is no fault of ours, though there is nobody to tell. */
async function* bodyOfClient(event: ApiEvent): AsyncGenerator<Uint8Array> {
  try {
    yield* streamOf(event);
  } catch (cause) {
    throw new ApiError('invalid_json', 'the connection ended before the request body did', { cause });
  }
}

function announcedBytes(event: ApiEvent): number | null {
  const length = event.headers['content-length'];
  return length !== undefined && /^\d{1,15}$/.test(length) ? Number(length) : null;
}
