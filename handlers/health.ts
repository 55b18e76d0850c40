import type { NotReady } from '../lib/app/readiness.ts';
import { errorBody } from '../lib/http/error-form.ts';
import { type ApiEvent, type ApiHandler, requestIdOf } from '../lib/http/event.ts';
import { json, jsonText } from '../lib/http/render.ts';
import { type GateDeps, open } from './middleware.ts';

export interface HealthDeps extends Pick<GateDeps, 'log' | 'notReady'> {
  /** What is wrong at present with a service that was ready: calls are still tried, but a load balancer should know. */
  unwell?(): NotReady | null;
}

/** `GET /healthz`: the only 503 that says why, because who asks it has to mend it. */
export function health(app: HealthDeps): ApiHandler {
  const handle = async (event: ApiEvent) => {
    const unready = app.notReady() ?? app.unwell?.() ?? null;
    if (unready === null) return json(200, { status: 'ok' });
    const { code, reason: message } = unready;
    const facts = { code, message, param: null, status: 503, requestId: requestIdOf(event) };
    return jsonText(503, errorBody(event.rawPath, facts), { 'retry-after': '5' });
  };
  return open(app, handle);
}
