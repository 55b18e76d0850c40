import { z } from 'zod';
import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import { isUuid } from '../lib/base/clock.ts';
import { ApiError } from '../lib/base/errors.ts';
import { findBatch } from '../lib/batch/batches.sql.ts';
import { type CancelDeps, cancelBatch } from '../lib/batch/cancel.ts';
import { type GetDeps, getBatch } from '../lib/batch/get.ts';
import { type ListDeps, listOwnBatches } from '../lib/batch/list.ts';
import { type RemoveDeps, removeBatch } from '../lib/batch/remove.ts';
import { type ChunkMemory, chunkMemory } from '../lib/batch/results/chunk-memory.ts';
import type { StreamDeps } from '../lib/batch/results/reader-budget.ts';
import { type ResultsDeps, renderResults } from '../lib/batch/results/results.ts';
import { parseMemory, parseSubmission, recordMemory } from '../lib/batch/submit/submission.ts';
import { submitBatch } from '../lib/batch/submit/submit.ts';
import { type SubmitUploadDeps, submitUpload } from '../lib/batch/submit/submit-upload.ts';
import { flag, idempotencyKeyOf, recordedHeader, refuseEncodedBody, whole } from '../lib/http/contracts.ts';
import { accountOf, bodyOf, pathParameter } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json, jsonText } from '../lib/http/render.ts';
import { ITEM_STATES } from '../lib/model/batch.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { MAX_CREATE_BYTES } from '../lib/surfaces/openai/create-request.ts';
import { type Endpoint, endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// The native API on batches. OpenAI's batches share four of its paths: by-surface.ts.

/** All that it needs of the application. */
export type NativeApp = SubmitApp & GetDeps & ListDeps & ResultsDeps & StreamDeps & CancelDeps & RemoveDeps;

interface SubmitApp extends GateDeps, SubmitUploadDeps {
  /** The catalogue in use. */
  catalog(): Catalog;
  maxItems: number;
  /** The Node adapter refuses larger bodies before it reads them; here it is API Gateway's that are checked. */
  maxRequestBytes: number;
}

export const submitBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/batches', body: 'read', lambda: 'submit' },
  async (app: SubmitApp, caller, event) => {
    const catalog = app.catalog();
    const attribution = attributionOf(caller, governingPolicy(caller, catalog), catalog);
    refuseEncodedBody(event.headers);
    const body = bodyOf(event);
    if (body.length > app.maxRequestBytes) throw bodyTooLarge(`${body.length} bytes`, app.maxRequestBytes);

    const account = accountOf(event);
    account.reserve(parseMemory(body.length, app.maxItems));
    const request = {
      surface: 'relay',
      attribution,
      body,
      idempotencyKey: idempotencyKeyOf(event.headers),
      anthropicVersion: recordedHeader(event.headers, 'anthropic-version'),
      anthropicBeta: recordedHeader(event.headers, 'anthropic-beta'),
    };
    const parsed = await parseSubmission(body, app.maxItems, MAX_CREATE_BYTES);
    if ('items' in parsed) account.reserve(recordMemory(body.length, parsed));
    const made =
      'uploadId' in parsed
        ? await submitUpload(app, { ...request, ...parsed, maxItems: app.maxItems, maxBytes: app.maxRequestBytes })
        : await submitBatch(app, { ...request, ...parsed });
    const replayed: Record<string, string> = made.replayed ? { 'idempotency-replayed': 'true' } : {};
    const answer = json(202, { id: made.id, status: 'queued', total_items: made.totalItems }, replayed);
    return { ...answer, batchId: made.id };
  },
);

const LIST_QUERY = z.object({
  surface: z.literal('relay', 'must be relay'),
  limit: whole(1, 100).default(20),
  after: z.string().refine(isUuid, 'must be the id of a batch').optional(),
});

export const listBatchesEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches', lambda: 'list', query: LIST_QUERY },
  async (app: GateDeps & ListDeps, { owner }, _event, { surface, limit, after }) =>
    json(200, await listOwnBatches(app, { owner, surface, limit, after: after ?? null })),
);

const GET_QUERY = z.object({ items: flag().default(true), usage: flag().default(false) });

export const getBatchEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches/{id}', lambda: 'get', query: GET_QUERY },
  async (app: GateDeps & GetDeps, { owner }, event, options) => {
    const id = pathParameter(event, 'id');
    return { ...jsonText(200, await getBatch(app, { surface: 'relay', owner, id }, options)), batchId: id };
  },
);

const removeBatchEndpoint = endpoint(
  { method: 'DELETE', pattern: '/v1/batches/{id}', lambda: 'remove' },
  async (app: GateDeps & RemoveDeps, { owner }, event) => {
    const id = pathParameter(event, 'id');
    await removeBatch(app, { surface: 'relay', owner, id });
    return { ...json(200, { id, deleted: true }), batchId: id };
  },
);

/** Idx values fit a Postgres integer. */
const MAX_IDX = 2_147_483_647;
const PAGE_ITEMS = 1000;
/** Where every answer has to be a page, one without `after` and `limit` is as long as its bytes allow. */
const MAX_PAGE_ITEMS = 10_000;

/** With `after` or `limit` the answer is a page. */
const RESULTS_QUERY = z.object({
  after: whole(0, MAX_IDX).optional(),
  limit: whole(1, MAX_PAGE_ITEMS).optional(),
  state: z.enum(ITEM_STATES, `must be one of ${ITEM_STATES.join(', ')}`).optional(),
});

const getResultsEndpoint = endpoint(
  { method: 'GET', pattern: '/v1/batches/{id}/results', lambda: 'results', query: RESULTS_QUERY },
  async (app: GateDeps & ResultsDeps & StreamDeps, { owner }, event, { after, limit, state }) => {
    const key = { surface: 'relay', owner, id: pathParameter(event, 'id') };
    const batch = isUuid(key.id) ? await findBatch(app.db, key) : null;
    if (batch === null) throw new ApiError('not_found');

    const range = { after: after ?? -1, state: state ?? null };
    let memory: ChunkMemory | null = null;
    const isPage = after !== undefined || limit !== undefined;
    const page = (singleMaxBytes: number | null) => ({
      limit: limit ?? (isPage ? PAGE_ITEMS : MAX_PAGE_ITEMS),
      singleMaxBytes,
    });
    const isDocument = !isPage && state === undefined && batch.results_id !== null;
    return {
      statusCode: 200,
      headers: { 'content-type': 'application/json' },
      batchId: key.id,
      stream: app.readers.stream(owner, (share) => {
        memory = chunkMemory(() => 2 * share.loadBytes());
        return renderResults(app, key, batch, { ...range, page: isPage ? page(null) : null, share, memory });
      }),
      length: null,
      object: isDocument ? { kind: 'result', id: batch.results_id! } : null,
      page: (singleMaxBytes) =>
        app.readers.stream(owner, (share) =>
          renderResults(app, key, batch, { ...range, page: page(singleMaxBytes), share }),
        ),
      sent: (chunk) => memory?.give(chunk),
    };
  },
);

export const cancelBatchEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/batches/{id}/cancel', lambda: 'cancel' },
  async (app: GateDeps & CancelDeps, { owner }, event) => {
    const id = pathParameter(event, 'id');
    if (!isUuid(id) || !(await cancelBatch(app, owner, 'relay', id))) throw new ApiError('not_found');
    return { ...json(200, { status: 'cancelled' }), batchId: id };
  },
);

export const NATIVE_ENDPOINTS: readonly Endpoint<NativeApp>[] = [
  submitBatchEndpoint,
  listBatchesEndpoint,
  getBatchEndpoint,
  removeBatchEndpoint,
  getResultsEndpoint,
  cancelBatchEndpoint,
];
