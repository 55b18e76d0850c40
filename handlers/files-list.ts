import type { Db } from '../lib/db/database.ts';
import { FILES_QUERY, parseQuery } from '../lib/http/contracts.ts';
import { type ApiHandler, queryOf } from '../lib/http/event.ts';
import { json, jsonText } from '../lib/http/render.ts';
import { listFilesJson } from '../lib/surfaces/files/list-files.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `GET /v1/files` */
export function listFilesHandler(app: GateDeps & { db: Db }): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const { after, limit, order, purpose } = parseQuery(FILES_QUERY, queryOf(event));
    if (purpose !== undefined && purpose !== 'batch' && purpose !== 'batch_output') {
      // A purpose that exists elsewhere: there are no such files here.
      return json(200, { object: 'list', data: [], first_id: null, last_id: null, has_more: false });
    }
    const query = { owner, purpose: purpose ?? null, after: after ?? null, limit, order };
    return jsonText(200, await listFilesJson(app.db, query));
  };
  return authenticated(app, handle);
}
