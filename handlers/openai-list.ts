import type { Db } from '../lib/db/database.ts';
import { OPENAI_LIST_QUERY, parseQuery } from '../lib/http/contracts.ts';
import { type ApiHandler, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { listBatchObjects } from '../lib/surfaces/openai/list.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/batches` */
export function listOpenaiBatchesHandler(app: GateDeps & { db: Db }): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { after, limit } = parseQuery(OPENAI_LIST_QUERY, queryOf(event));
    return json(200, await listBatchObjects(app.db, { owner, after: after ?? null, limit }));
  };
  return authenticated(app, handle);
}
