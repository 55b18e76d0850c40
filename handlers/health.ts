import type { ApiHandler } from '../lib/http/event.ts';
import { errorBody, json, jsonText } from '../lib/http/render.ts';
import { type GateDeps, open } from './middleware.ts';

/** `GET /healthz`: the only 503 that says why, because who asks it has to mend it. */
export function health(app: Pick<GateDeps, 'log' | 'notReady'>): ApiHandler {
  const handle = async () => {
    const unready = app.notReady();
    if (unready === null) return json(200, { status: 'ok' });
    return jsonText(503, errorBody(unready.code, unready.reason, null, 503), { 'retry-after': '5' });
  };
  return open(app, handle);
}
