import type { Database } from '../lib/db/database.ts';
import { type ApiHandler, queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { type BoundRoute, bindRoutes, type Route } from '../lib/http/routes.ts';
import { usageEvents } from '../lib/usage/events.ts';
import { usageSummary, usageTimeseries } from '../lib/usage/figures.ts';
import { authenticated, type GateDeps } from './middleware.ts';

const USAGE_ROUTES = [
  { method: 'GET', pattern: '/v1/usage/events', handler: 'events' },
  { method: 'GET', pattern: '/v1/usage/summary', handler: 'summary' },
  { method: 'GET', pattern: '/v1/usage/timeseries', handler: 'timeseries' },
] as const satisfies readonly Route[];

/** Reads usage by a query. `owner` limits it to one caller's events. */
type Reader = (query: URLSearchParams, owner?: string) => Promise<unknown>;

/** The three usage calls over everybody's events, as the control API offers them; each throws ApiError 400. */
export function usageReaders(db: Database): Record<'events' | 'summary' | 'timeseries', Reader> {
  return {
    events: (query, owner) => usageEvents(db, { query, owner: owner ?? null }),
    summary: (query, owner) => usageSummary(db, { query, owner: owner ?? null }),
    timeseries: (query, owner) => usageTimeseries(db, { query, owner: owner ?? null }),
  };
}

/** `GET /v1/usage/events|summary|timeseries` on the inference port: the caller's own events only. */
export function usageRoutes(app: GateDeps & { db: Database }): BoundRoute[] {
  const readers = usageReaders(app.db);
  const own = (read: Reader): ApiHandler =>
    authenticated(app, async (event, { owner }) => json(200, await read(queryOf(event), owner)));
  return bindRoutes(USAGE_ROUTES, {
    events: own(readers.events),
    summary: own(readers.summary),
    timeseries: own(readers.timeseries),
  });
}
