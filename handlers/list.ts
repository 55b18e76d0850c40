import { type ListDeps, listOwnBatches } from '../lib/batch/list.ts';
import { LIST_QUERY, parseQuery } from '../lib/http/contracts.ts';
import { type ApiHandler, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/batches?surface=relay` */
export function list(app: GateDeps & ListDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { surface, limit, after } = parseQuery(LIST_QUERY, queryOf(event));
    return json(200, await listOwnBatches(app, { owner, surface, limit, after: after ?? null }));
  };
  return authenticated(app, handle);
}
