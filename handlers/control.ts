import { ApiError } from '../lib/base/errors.ts';
import { CONTROL_ROUTES, type ControlHandlerName } from '../lib/http/control.ts';
import { type ApiEvent, type ApiHandler, pathParameter, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type BoundRoute, bindRoutes } from '../lib/http/routes.ts';
import type { HostKey } from '../lib/model/catalog.ts';
import { admin } from './admin.ts';
import { type CredentialsApp, issue, revoke, revokeAll, revokeOne, rotate } from './control-credentials.ts';
import { create, exported, get, list, remove, replace } from './control-objects.ts';
import { health } from './health.ts';
import { open } from './middleware.ts';

/** All that the control port needs of the application. */
export interface ControlApp extends CredentialsApp {
  /** What is known of a host key's breaker; never its value. */
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

/** The control port's routes, bound. All but `/healthz` and `/metrics` ask for the admin bearer. */
export function controlRoutes(app: ControlApp): BoundRoute[] {
  return bindRoutes(CONTROL_ROUTES, controlHandlers(app));
}

function controlHandlers(app: ControlApp): Record<ControlHandlerName, ApiHandler> {
  const usage = (read: keyof ControlApp['usage']) =>
    admin(app, async (event) => json(200, await app.usage[read](queryOf(event))));
  return {
    health: health(app),
    metrics: open(app, async () => {
      const { contentType, body } = await app.metrics();
      return { statusCode: 200, headers: { 'content-type': contentType }, body };
    }),
    exportCatalog: exported(app),
    usageEvents: usage('events'),
    usageSummary: usage('summary'),
    usageTimeseries: usage('timeseries'),
    createToken: issue(app),
    deleteToken: revokeOne(app),
    revokeTokensOfUser: revokeAll(app),
    rotateKey: rotate(app),
    revokeKey: revoke(app),
    hostKeyHealth: admin(app, async (event) => json(200, await app.hostKeyHealth(hostKeyOf(app, event)))),
    resetHostKey: admin(app, async (event) => {
      const key = hostKeyOf(app, event);
      await app.resetHostKey(key);
      return json(200, await app.hostKeyHealth(key));
    }),
    listObjects: list(app),
    createObject: create(app),
    getObject: get(app),
    replaceObject: replace(app),
    deleteObject: remove(app),
  };
}

function hostKeyOf(app: ControlApp, event: ApiEvent): HostKey {
  const wanted = pathParameter(event, 'name');
  const { hostKeys } = app.catalogCache.current();
  const found = hostKeys.get(wanted) ?? [...hostKeys.values()].find((key) => key.id === wanted.toLowerCase());
  if (found === undefined) throw new ApiError('not_found');
  return found;
}
