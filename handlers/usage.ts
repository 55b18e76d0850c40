import type { Database } from '../lib/db/database.ts';
import { queryOf } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { usageEvents } from '../lib/usage/events.ts';
import { usageSummary, usageTimeseries } from '../lib/usage/figures.ts';
import { type Endpoint, endpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// The caller's own usage on the inference port. The control port shows everybody's: control.ts.

/** The parts of the application that the usage endpoints use. */
export interface UsageApp extends GateDeps {
  db: Database;
}

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

const ownUsageEndpoint = (read: 'events' | 'summary' | 'timeseries') =>
  endpoint({ method: 'GET', pattern: `/v1/usage/${read}`, lambda: 'usage' }, async (app: UsageApp, { owner }, event) =>
    json(200, await usageReaders(app.db)[read](queryOf(event), owner)),
  );

export const USAGE_ENDPOINTS: readonly Endpoint<UsageApp>[] = [
  ownUsageEndpoint('events'),
  ownUsageEndpoint('summary'),
  ownUsageEndpoint('timeseries'),
];
