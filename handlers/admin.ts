import { createHash, timingSafeEqual } from 'node:crypto';
import { ApiError } from '../lib/base/errors.ts';
import { CatalogError } from '../lib/catalog/documents/document.ts';
import { faultsResult } from '../lib/http/control-body.ts';
import type { ApiEvent, ApiResult } from '../lib/http/event.ts';
import type { HttpRoute } from '../lib/http/routes.ts';
import { type Endpoint, openEndpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

/** The parts of the application that every endpoint of the control API uses. */
export interface AdminDeps extends Pick<GateDeps, 'log' | 'notReady'> {
  /** Null: the control API refuses everything. */
  adminToken: string | null;
}

/**
 * An endpoint of the control API: the admin bearer first, then 503 until ready. The faults of a catalogue document become
 * a 400 with all of them.
 */
export function adminEndpoint<App extends AdminDeps>(
  route: HttpRoute,
  handle: (app: App, event: ApiEvent) => Promise<ApiResult>,
): Endpoint<App> {
  return openEndpoint({ ...route, lambda: null }, async (app: App, event) => {
    requireAdmin(event.headers.authorization, app.adminToken);
    const unready = app.notReady();
    if (unready) throw new ApiError(unready.code, unready.reason);
    try {
      return await handle(app, event);
    } catch (error) {
      if (error instanceof CatalogError) return faultsResult(error);
      throw error;
    }
  });
}

/**
 * For `serve`: the admin bearer is checked before anything else, for unknown paths and for bodies too. Only `/healthz`
 * and `/metrics` pass without.
 */
export function controlGuard(adminToken: string | null): (path: string, authorization: string | undefined) => void {
  return (path, authorization) => {
    if (path !== '/healthz' && path !== '/metrics') requireAdmin(authorization, adminToken);
  };
}

/** Throws 401 unless the header is `Bearer <admin token>`. Compared as digests: neither text nor length leaks by time. */
function requireAdmin(authorization: string | undefined, adminToken: string | null): void {
  const presented = /^bearer +(\S.*)$/i.exec(authorization?.trim() ?? '')?.[1];
  if (presented === undefined) throw new ApiError('missing_api_key', 'missing admin token');
  if (adminToken === null || !timingSafeEqual(digest(presented), digest(adminToken))) {
    throw new ApiError('invalid_api_key', 'invalid admin token');
  }
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest();
}
