import type { Route } from './routes.ts';

/**
 * The control port ("Control API" in docs/spec/native-api.md). Literal segments win, so the fixed paths stand beside
 * the plurals.
 */
export const CONTROL_ROUTES = [
  { method: 'GET', pattern: '/healthz', handler: 'health' },
  { method: 'GET', pattern: '/metrics', handler: 'metrics' },
  { method: 'GET', pattern: '/api/catalog', handler: 'exportCatalog' },
  { method: 'GET', pattern: '/api/usage/events', handler: 'usageEvents' },
  { method: 'GET', pattern: '/api/usage/summary', handler: 'usageSummary' },
  { method: 'GET', pattern: '/api/usage/timeseries', handler: 'usageTimeseries' },
  { method: 'POST', pattern: '/api/tokens', handler: 'createToken', body: 'read' },
  { method: 'DELETE', pattern: '/api/tokens/{jti}', handler: 'deleteToken' },
  { method: 'POST', pattern: '/api/users/by-id/{id}/revoke-tokens', handler: 'revokeTokensOfUser' },
  { method: 'POST', pattern: '/api/keys/by-id/{id}/rotate', handler: 'rotateKey', body: 'read' },
  { method: 'POST', pattern: '/api/keys/by-id/{id}/revoke', handler: 'revokeKey' },
  { method: 'GET', pattern: '/api/host-keys/{name}/health', handler: 'hostKeyHealth' },
  { method: 'POST', pattern: '/api/host-keys/{name}/reset', handler: 'resetHostKey' },
  { method: 'GET', pattern: '/api/{plural}', handler: 'listObjects' },
  { method: 'POST', pattern: '/api/{plural}', handler: 'createObject', body: 'read' },
  { method: 'GET', pattern: '/api/{plural}/{nameOrId}', handler: 'getObject' },
  { method: 'PUT', pattern: '/api/{plural}/by-id/{id}', handler: 'replaceObject', body: 'read' },
  { method: 'DELETE', pattern: '/api/{plural}/by-id/{id}', handler: 'deleteObject' },
] as const satisfies readonly Route[];

/** What `handlers/control.ts` has to bind. */
export type ControlHandlerName = (typeof CONTROL_ROUTES)[number]['handler'];
