import type { ApiHandler } from '../lib/http/event.ts';
import type { BoundRoute } from '../lib/http/routes.ts';

/** Several routes as one Lambda function: API Gateway has matched already, its route key says which. */
export function routed(routes: readonly BoundRoute[]): ApiHandler {
  const byKey = new Map(routes.map(({ method, pattern, run }) => [`${method} ${pattern}`, run]));
  return (event, context) => {
    const run = byKey.get(event.routeKey);
    if (run === undefined) throw new Error(`no route for ${event.routeKey}`);
    return run(event, context);
  };
}
