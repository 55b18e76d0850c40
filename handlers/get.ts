import { type GetDeps, getBatch } from '../lib/batch/get.ts';
import { GET_QUERY, parseQuery } from '../lib/http/contracts.ts';
import { type ApiHandler, pathParameter, queryOf } from '../lib/http/event.ts';
import { jsonText } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/batches/{id}` */
export function get(app: GateDeps & GetDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const options = parseQuery(GET_QUERY, queryOf(event));
    const id = pathParameter(event, 'id');
    const text = await getBatch(app, { surface: 'relay', owner, id }, options);
    return { ...jsonText(200, text), batchId: id };
  };
  return authenticated(app, handle);
}
