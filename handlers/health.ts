import type { ApiHandler } from '../lib/http/event.ts';
import { errorBody, json, jsonText } from '../lib/http/render.ts';
import type { NotReady } from '../lib/ready.ts';
import { type GateDeps, open } from './middleware.ts';

export interface HealthDeps extends Pick<GateDeps, 'log' | 'notReady'> {
  /** What is wrong at present with a service that was ready: calls are still tried, but a load balancer should know. */
  unwell?(): NotReady | null;
}

/** `GET /healthz`: the only 503 that says why, because who asks it has to mend it. */
export function health(app: HealthDeps): ApiHandler {
  const handle = async () => {
    const unready = app.notReady() ?? app.unwell?.() ?? null;
    if (unready === null) return json(200, { status: 'ok' });
    return jsonText(503, errorBody(unready.code, unready.reason, null, 503), { 'retry-after': '5' });
  };
  return open(app, handle);
}
