import { ApiError } from '../lib/base/errors.ts';
import type { ProgressDeps } from '../lib/batch/progress.ts';
import { type ApiEvent, pathParameter, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import type { BoundRoute } from '../lib/http/routes.ts';
import type { HostKey } from '../lib/model/catalog.ts';
import { adminEndpoint } from './admin.ts';
import { CREDENTIAL_ENDPOINTS, type CredentialsApp } from './control-credentials.ts';
import { OBJECT_ENDPOINTS } from './control-objects.ts';
import { bindEndpoints, type Endpoint, openEndpoint } from './endpoint.ts';
import { type HealthApp, healthEndpoint } from './health.ts';
import { getAnyProgressEndpoint } from './progress.ts';

/** All that the control port needs of the application. */
export interface ControlApp extends CredentialsApp, HealthApp, ProgressDeps {
  db: CredentialsApp['db'];
  /** The state of a host key's breakers; never its value. */
  hostKeyHealth(key: HostKey): Promise<object>;
  /** Closes a host key's breaker for all replicas. */
  resetHostKey(key: HostKey): Promise<void>;
  /**
   * Reads usage by a query ("Usage queries" in docs/spec/gateway-rules.md); throws ApiError 400 naming the parameter.
   */
  usage: Record<'events' | 'summary' | 'timeseries', (query: URLSearchParams) => Promise<unknown>>;
  /** The metrics in the text format of Prometheus. */
  metrics(): Promise<{ contentType: string; body: string }>;
}

const metricsEndpoint = openEndpoint(
  { method: 'GET', pattern: '/metrics', lambda: null },
  async (app: Pick<ControlApp, 'log' | 'metrics'>) => {
    const { contentType, body } = await app.metrics();
    return { statusCode: 200, headers: { 'content-type': contentType }, body };
  },
);

const usageEndpoint = (read: keyof ControlApp['usage']) =>
  adminEndpoint({ method: 'GET', pattern: `/api/usage/${read}` }, async (app: ControlApp, event) =>
    json(200, await app.usage[read](queryOf(event))),
  );

const getHostKeyHealthEndpoint = adminEndpoint(
  { method: 'GET', pattern: '/api/host-keys/{name}/health' },
  async (app: ControlApp, event) => json(200, await app.hostKeyHealth(hostKeyOf(app, event))),
);

const resetHostKeyEndpoint = adminEndpoint(
  { method: 'POST', pattern: '/api/host-keys/{name}/reset' },
  async (app: ControlApp, event) => {
    const key = hostKeyOf(app, event);
    await app.resetHostKey(key);
    return json(200, await app.hostKeyHealth(key));
  },
);

/**
 * Every endpoint of the control port ("Control API" in docs/spec/native-api.md). All but `/healthz` and `/metrics` ask for
 * the admin bearer. Literal segments win, so fixed paths and plurals do not collide.
 *
 * @internal Exported for its tests.
 */
export const CONTROL_ENDPOINTS: readonly Endpoint<ControlApp>[] = [
  healthEndpoint,
  metricsEndpoint,
  usageEndpoint('events'),
  usageEndpoint('summary'),
  usageEndpoint('timeseries'),
  getHostKeyHealthEndpoint,
  resetHostKeyEndpoint,
  getAnyProgressEndpoint,
  ...CREDENTIAL_ENDPOINTS,
  ...OBJECT_ENDPOINTS,
];

/** The routes of the control port. */
export function controlRoutes(app: ControlApp): BoundRoute[] {
  return bindEndpoints(CONTROL_ENDPOINTS, app);
}

function hostKeyOf(app: ControlApp, event: ApiEvent): HostKey {
  const wanted = pathParameter(event, 'name');
  const { hostKeys } = app.catalogCache.current();
  const found = hostKeys.get(wanted) ?? [...hostKeys.values()].find((key) => key.id === wanted.toLowerCase());
  if (found === undefined) throw new ApiError('not_found');
  return found;
}
