import type { NotReady } from '../lib/app/readiness.ts';
import { errorBody, errorForm } from '../lib/http/error-form.ts';
import { requestIdOf } from '../lib/http/event.ts';
import { json, jsonText } from '../lib/http/render.ts';
import { openEndpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

export interface HealthApp extends Pick<GateDeps, 'log' | 'notReady'> {
  /** The present fault of a service that was ready: calls are still tried, but a load balancer should know. */
  unwell?(): NotReady | null;
}

/** The only 503 that says why: its reader is the operator, who has to repair it. On both ports. */
export const healthEndpoint = openEndpoint(
  { method: 'GET', pattern: '/healthz', lambda: 'health' },
  async (app: HealthApp, event) => {
    const unready = app.notReady() ?? app.unwell?.() ?? null;
    if (unready === null) return json(200, { status: 'ok' });
    const { code, reason: message } = unready;
    const facts = { code, message, param: null, status: 503, requestId: requestIdOf(event) };
    return jsonText(503, errorBody(errorForm(event.rawPath, event.headers), facts), { 'retry-after': '5' });
  },
);
