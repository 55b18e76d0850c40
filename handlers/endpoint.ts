import { z } from 'zod';
import type { Caller } from '../lib/auth/authenticate.ts';
import { parseQuery } from '../lib/http/contracts.ts';
import { type ApiEvent, type ApiHandler, type ApiResult, bodyOf, queryOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import type { BoundRoute, HttpRoute } from '../lib/http/routes.ts';
import { authenticated, callerOf, type GateDeps, open } from './middleware.ts';

/**
 * One endpoint: its route, and the function that serves it. The route tables of both ports and the HTTP functions on
 * Lambda are made of these values, and a test holds serverless.yml to them.
 */
export interface Endpoint<App> extends HttpRoute {
  /** The Lambda function that serves it, by its name in serverless.yml; null: it is not on Lambda. */
  readonly lambda: string | null;
  /** Makes the handler from what it needs of the application. The middleware is part of it. */
  readonly bind: (app: App) => ApiHandler;
  /** Finds the caller before the body is read. */
  readonly admission?: (app: App) => NonNullable<BoundRoute['admit']>;
}

/** An endpoint for callers with a credential, which `by-surface.ts` can put beside another one. */
export interface CallerEndpoint<App> extends Endpoint<App> {
  /** Serves a request whose caller is known. */
  readonly serve: (app: App, event: ApiEvent, caller: Caller) => Promise<ApiResult>;
}

interface LambdaRoute extends HttpRoute {
  readonly lambda: string | null;
}

const NO_QUERY = z.object({});

/**
 * An endpoint for callers with a credential. `handle` sees a request whose caller is known and whose query fits its
 * contract; it throws ApiError and never sees the wire form of an error.
 */
export function endpoint<App extends GateDeps, Query extends z.ZodObject = typeof NO_QUERY>(
  { query, ...route }: LambdaRoute & { readonly query?: Query },
  handle: (app: App, caller: Caller, event: ApiEvent, query: z.infer<Query>) => Promise<ApiResult>,
): CallerEndpoint<App> {
  const contract = (query ?? NO_QUERY) as Query;
  return forCallers(route, async (app, event, caller) => {
    const query = parseQuery(contract, queryOf(event));
    if (route.maxBytes !== undefined) checkLength(bodyOf(event), route.maxBytes);
    return handle(app, caller, event, query);
  });
}

/** One route for two endpoints: `isOther` chooses, for a caller that is known. The first one names the route. */
export function either<App extends GateDeps, Other extends GateDeps>(
  one: CallerEndpoint<App>,
  other: CallerEndpoint<Other>,
  isOther: (event: ApiEvent) => boolean,
): CallerEndpoint<App & Other> {
  const { bind: _, admission: _admission, serve: _serve, ...route } = one;
  return forCallers(route, (app, event, caller) => (isOther(event) ? other : one).serve(app, event, caller));
}

function forCallers<App extends GateDeps>(
  route: LambdaRoute,
  serve: CallerEndpoint<App>['serve'],
): CallerEndpoint<App> {
  return {
    ...route,
    serve,
    admission: (app) => async (event) => (await callerOf(app, event)).owner,
    bind: (app) => authenticated(app, (event, caller) => serve(app, event, caller)),
  };
}

/** The Node adapter checks the length before it reads. API Gateway hands over what came. */
function checkLength(body: Buffer, maxBytes: number): void {
  if (body.length > maxBytes) throw bodyTooLarge(`${body.length} bytes`, maxBytes);
}

/** An endpoint that asks for no credential and answers before the service is ready. */
export function openEndpoint<App extends Pick<GateDeps, 'log'>>(
  route: LambdaRoute,
  handle: (app: App, event: ApiEvent) => Promise<ApiResult>,
): Endpoint<App> {
  return { ...route, bind: (app) => open(app, (event) => handle(app, event)) };
}

/** The same endpoints below a path of their own, for clients whose base URL has it. */
export function below<App>(prefix: string, endpoints: readonly Endpoint<App>[]): Endpoint<App>[] {
  return endpoints.map((one) => ({ ...one, pattern: prefix + one.pattern }));
}

/** The same endpoints below a path of their own that takes the place of `/v1`, as Azure's clients ask. */
export function inPlaceOfVersion<App>(prefix: string, endpoints: readonly Endpoint<App>[]): Endpoint<App>[] {
  return endpoints.map((one) => ({ ...one, pattern: prefix + one.pattern.slice('/v1'.length) }));
}

/** The endpoints as routes of an adapter. */
export function bindEndpoints<App>(endpoints: readonly Endpoint<App>[], app: App): BoundRoute[] {
  return endpoints.map(({ bind, admission, lambda: _, ...route }) => ({
    ...route,
    run: bind(app),
    ...(admission && { admit: admission(app) }),
  }));
}
