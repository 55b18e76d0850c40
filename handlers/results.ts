import { type Clock, isUuid, uuidv7 } from '../lib/base/clock.ts';
import { ApiError } from '../lib/base/errors.ts';
import { findBatch } from '../lib/batch/batches.sql.ts';
import { chunkMemory } from '../lib/batch/results/chunk-memory.ts';
import { PAGE_BYTES, type ResultsDeps, renderResults } from '../lib/batch/results/results.ts';
import { parseQuery, RESULTS_QUERY } from '../lib/http/contracts.ts';
import { type ApiHandler, pathParameter, queryOf } from '../lib/http/event.ts';
import type { PayloadStore } from '../lib/payloads/payload-store.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

const PAGE_ITEMS = 1000;
/** Without streaming every answer is a page; one that was not asked for is as long as its bytes allow. */
const MAX_PAGE_ITEMS = 10_000;

/** A page and its frame. Only a page of one larger item is longer. */
const ANSWER_BYTES = PAGE_BYTES + 1000;

/** How long a link to a results document is good: enough for a slow start, too short to be passed around. */
const LINK_SECONDS = 900;

export interface ResultsApp extends GateDeps, ResultsDeps {
  payloads: ResultsDeps['payloads'] & Pick<PayloadStore, 'link' | 'write'>;
  clock: Clock;
  /** True in the container. On Lambda an answer is one value of at most 6 MB, so that pages are all there is. */
  streaming: boolean;
}

/** `GET /v1/batches/{id}/results` */
export function results(app: ResultsApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { after, limit, state } = parseQuery(RESULTS_QUERY, queryOf(event));
    const key = { surface: 'relay', owner, id: pathParameter(event, 'id') };
    const batch = isUuid(key.id) ? await findBatch(app.db, key) : null;
    if (batch === null) throw new ApiError('not_found');

    const asked = after !== undefined || limit !== undefined;
    if (!app.streaming && !asked && state === undefined && batch.results_id !== null) {
      const location = await linkTo(app, batch.results_id);
      if (location !== null) return { statusCode: 303, headers: { location }, batchId: key.id };
    }
    const page =
      asked || !app.streaming
        ? {
            limit: limit ?? (asked ? PAGE_ITEMS : MAX_PAGE_ITEMS),
            singleMaxBytes: canPutAside(app) ? null : PAGE_BYTES,
          }
        : null;
    const memory = chunkMemory();
    const range = { after: after ?? -1, state: state ?? null, page };
    const stream = renderResults(app, key, batch, app.streaming ? { ...range, memory } : range);
    const answer = { statusCode: 200, headers: { 'content-type': 'application/json' }, batchId: key.id };
    if (app.streaming) return { ...answer, stream, sent: memory.give };
    const body = await collect(stream);
    if (body.length > ANSWER_BYTES) {
      return { statusCode: 303, headers: { location: await putAside(app, body) }, batchId: key.id };
    }
    // Base64, because item bytes need not be valid UTF-8 and must not change.
    return { ...answer, isBase64Encoded: true, body: body.toString('base64') };
  };
  return authenticated(app, handle);
}

/** Where a finished batch's whole document can be fetched, when it is too large for one answer; else null. */
async function linkTo({ payloads }: ResultsApp, resultsId: string): Promise<string | null> {
  const ref = { kind: 'result', id: resultsId } as const;
  if (payloads.link === undefined || (await payloads.size(ref)) <= PAGE_BYTES) return null;
  return payloads.link(ref, LINK_SECONDS);
}

/** True when a page of one item that is too large for an answer can be fetched elsewhere. */
function canPutAside({ streaming, payloads }: ResultsApp): boolean {
  return streaming || payloads.link !== undefined;
}

/** Where such a page can be fetched. Nothing refers to its object: the orphan sweep deletes it after a day. */
async function putAside({ payloads, clock }: ResultsApp, page: Buffer): Promise<string> {
  const ref = { kind: 'result', id: uuidv7(clock.now()) } as const;
  await payloads.write(ref, [page]);
  return payloads.link!(ref, LINK_SECONDS);
}

async function collect(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}
