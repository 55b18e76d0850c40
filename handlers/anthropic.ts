import { z } from 'zod';
import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import { ApiError } from '../lib/base/errors.ts';
import type { CancelDeps } from '../lib/batch/cancel.ts';
import type { RemoveDeps } from '../lib/batch/remove.ts';
import type { StreamDeps } from '../lib/batch/results/reader-budget.ts';
import type { Db } from '../lib/db/database.ts';
import { idempotencyKeyOf, recordedHeader, refuseEncodedBody, whole } from '../lib/http/contracts.ts';
import { type ApiEvent, type BodyResult, originOf, pathParameter, streamOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { cancelMessageBatch } from '../lib/surfaces/anthropic/cancel.ts';
import { type CreateDeps, createMessageBatch } from '../lib/surfaces/anthropic/create.ts';
import { listMessageBatches } from '../lib/surfaces/anthropic/list.ts';
import { messageBatch, messageBatchId, parseMessageBatchId } from '../lib/surfaces/anthropic/message-batch.ts';
import {
  findMessageBatch,
  type MessageBatchKey,
  type MessageBatchRow,
} from '../lib/surfaces/anthropic/message-batches.sql.ts';
import { removeMessageBatch } from '../lib/surfaces/anthropic/remove.ts';
import { findMessageResults, type MessageResultsDeps, messageResultBytes } from '../lib/surfaces/anthropic/results.ts';
import { type Endpoint, endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// Anthropic's message batches ("Anthropic routes" in docs/spec/anthropic-surface.md), at `/v1/messages/batches` and below `/anthropic`.

/** All that they need of the application. */
export type MessageBatchesApp = CreateApp & CancelApp & MessageResultsDeps & StreamDeps & RemoveDeps;

/** The parts of the application for every answer that shows a batch. */
interface ReadApp extends GateDeps {
  db: Db;
  /** How callers reach the inference port; null: by `listenUrl`. */
  publicUrl: string | null;
  /** The address that the server listens on. Null (every interface, or Lambda): the host of the caller's request. */
  listenUrl?(): string | null;
}

interface CreateApp extends ReadApp, CreateDeps {
  db: CreateDeps['db'];
  /** The catalogue in use. */
  catalog(): Catalog;
}

const createMessageBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/messages/batches', body: 'stream', lambda: 'messageBatches' },
  async (app: CreateApp, caller, event) => {
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
    return answerOf(app, event, row, made.replayed ? { 'idempotency-replayed': 'true' } : {});
  },
);

/** A client that disconnects in mid-body is not a fault of ours, though nobody reads the answer. */
async function* bodyOfClient(event: ApiEvent): AsyncGenerator<Uint8Array> {
  try {
    yield* streamOf(event);
  } catch (cause) {
    if (cause instanceof ApiError) throw cause;
    throw new ApiError('invalid_json', 'the connection ended before the request body did', { cause });
  }
}

function announcedBytes(event: ApiEvent): number | null {
  const length = event.headers['content-length'];
  return length !== undefined && /^\d{1,15}$/.test(length) ? Number(length) : null;
}

/** The id of a batch, which becomes its UUID. */
const batchId = () =>
  z
    .string()
    .refine((id) => parseMessageBatchId(id) !== null, 'must be the id of a message batch')
    .transform((id) => parseMessageBatchId(id)!)
    .optional();

const LIST_QUERY = z.object({ limit: whole(1, 1000).default(20), after_id: batchId(), before_id: batchId() });

const listMessageBatchesEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/messages/batches', lambda: 'messageBatches', query: LIST_QUERY },
  async (app: ReadApp, { owner }, event, { limit, after_id: after, before_id: before }) => {
    if (after !== undefined && before !== undefined) {
      throw new ApiError('invalid_value', 'before_id cannot stand beside after_id', { param: 'before_id' });
    }
    const page = { owner, after: after ?? null, before: before ?? null, limit };
    const { rows, hasMore } = await listMessageBatches(app, page);
    const data = rows.map((row) => messageBatch(row, () => resultsOrigin(app, event)));
    return json(200, { data, has_more: hasMore, first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null });
  },
);

const getMessageBatchEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/messages/batches/{id}', lambda: 'messageBatches' },
  async (app: ReadApp, { owner }, event) => {
    const row = await findMessageBatch(app.db, keyOf(event, owner));
    if (row === null) throw new ApiError('not_found');
    return answerOf(app, event, row);
  },
);

const removeMessageBatchEndpoint = endpoint(
  { method: 'DELETE', pattern: '/v1/messages/batches/{id}', lambda: 'messageBatches' },
  async (app: GateDeps & RemoveDeps, { owner }, event) => {
    const key = keyOf(event, owner);
    await removeMessageBatch(app, key);
    return { ...json(200, { id: messageBatchId(key.id), type: 'message_batch_deleted' }), batchId: key.id };
  },
);

const getMessageResultsEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/messages/batches/{id}/results', lambda: 'messageBatches' },
  async (app: GateDeps & MessageResultsDeps & StreamDeps, { owner }, event) => {
    const key = keyOf(event, owner);
    const results = await findMessageResults(app, key);
    return {
      statusCode: 200,
      headers: { 'content-type': 'application/x-jsonl' },
      batchId: key.id,
      stream: app.readers.stream(owner, () => messageResultBytes(app, results)),
      length: results.bytes,
      object: results.ref,
    };
  },
);

interface CancelApp extends ReadApp, CancelDeps {
  db: CancelDeps['db'];
  /** Writes the results of batches whose items are all final; never rejects. */
  compact(batchIds: readonly string[]): Promise<void>;
}

/** Body and content type are ignored. */
const cancelMessageBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/messages/batches/{id}/cancel', lambda: 'messageBatches' },
  async (app: CancelApp, { owner }, event) => {
    const row = await cancelMessageBatch(app, keyOf(event, owner));
    if (row === null) throw new ApiError('not_found');
    const answer = answerOf(app, event, row);
    if (row.completed_at === null || row.results_id !== null) return answer;
    // Nothing ran any more: no worker will end it. The sweep would, some seconds later.
    return { ...answer, background: app.compact([row.id]) };
  },
);

/** The batch that `{id}` names. A malformed id is as unknown as that of no batch. */
function keyOf(event: ApiEvent, owner: string): MessageBatchKey {
  const id = parseMessageBatchId(pathParameter(event, 'id'));
  if (id === null) throw new ApiError('not_found');
  return { id, owner };
}

/** A batch as the answer. */
function answerOf(
  app: Pick<ReadApp, 'publicUrl' | 'listenUrl'>,
  event: ApiEvent,
  row: MessageBatchRow,
  headers: Record<string, string> = {},
): BodyResult {
  const batch = messageBatch(row, () => resultsOrigin(app, event));
  return { ...json(200, batch, headers), batchId: row.id };
}

/** Where `results_url` begins. Clients send their key there, so that a Host header decides only where nothing else can. */
function resultsOrigin(app: Pick<ReadApp, 'publicUrl' | 'listenUrl'>, event: ApiEvent): string {
  return originOf(event, app.publicUrl ?? app.listenUrl?.() ?? null);
}

export const MESSAGE_BATCH_ENDPOINTS: readonly Endpoint<MessageBatchesApp>[] = [
  createMessageBatchEndpoint,
  listMessageBatchesEndpoint,
  getMessageBatchEndpoint,
  removeMessageBatchEndpoint,
  getMessageResultsEndpoint,
  cancelMessageBatchEndpoint,
];
