import { isUuid } from '../lib/base/clock.ts';
import { ApiError } from '../lib/base/errors.ts';
import { findBatch } from '../lib/batch/batches.sql.ts';
import { chunkMemory } from '../lib/batch/results/chunk-memory.ts';
import { type ResultsDeps, renderResults } from '../lib/batch/results/results.ts';
import { parseQuery, RESULTS_QUERY } from '../lib/http/contracts.ts';
import { type ApiHandler, pathParameter, queryOf } from '../lib/http/event.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

const PAGE_ITEMS = 1000;
/** Where every answer has to be a page, one that was not asked for is as long as its bytes allow. */
const MAX_PAGE_ITEMS = 10_000;

export type ResultsApp = GateDeps & ResultsDeps;

/** `GET /v1/batches/{id}/results` */
export function results(app: ResultsApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { after, limit, state } = parseQuery(RESULTS_QUERY, queryOf(event));
    const key = { surface: 'relay', owner, id: pathParameter(event, 'id') };
    const batch = isUuid(key.id) ? await findBatch(app.db, key) : null;
    if (batch === null) throw new ApiError('not_found');

    const range = { after: after ?? -1, state: state ?? null };
    const memory = chunkMemory();
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
      stream: renderResults(app, key, batch, { ...range, page: isPage ? page(null) : null, memory }),
      length: null,
      object: isDocument ? { kind: 'result', id: batch.results_id! } : null,
      page: (singleMaxBytes) => renderResults(app, key, batch, { ...range, page: page(singleMaxBytes) }),
      sent: memory.give,
    };
  };
  return authenticated(app, handle);
}
