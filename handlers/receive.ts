import { ApiError } from '../lib/base/errors.ts';
import { type ReceiveUploadDeps, receiveUpload } from '../lib/batch/submit/receive-upload.ts';
import { refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, pathParameter, queryOf, streamOf } from '../lib/http/event.ts';
import { type BoundRoute, bindRoutes, type Route } from '../lib/http/routes.ts';
import { type GateDeps, open } from './middleware.ts';

const RECEIVE_ROUTES = [
  { method: 'PUT', pattern: '/v1/uploads/{id}', handler: 'receive', body: 'stream' },
] as const satisfies readonly Route[];

type ReceiveApp = Pick<GateDeps, 'log' | 'notReady'> & ReceiveUploadDeps;

/** `PUT /v1/uploads/{id}`, whose URL is its credential. Only where the store has no signed URLs of its own. */
export function receiveRoutes(app: ReceiveApp): BoundRoute[] {
  return bindRoutes(RECEIVE_ROUTES, { receive: receive(app) });
}

function receive(app: ReceiveApp): ApiHandler {
  return open(app, async (event) => {
    const unready = app.notReady();
    if (unready) throw new ApiError(unready.code, unready.reason);
    refuseEncodedBody(event.headers);
    const query = queryOf(event);
    await receiveUpload(app, {
      id: pathParameter(event, 'id'),
      bytes: query.get('bytes') ?? '',
      signature: query.get('signature') ?? '',
      source: streamOf(event),
    });
    return { statusCode: 200, headers: {} };
  });
}
