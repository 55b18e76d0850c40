import { fileURLToPath } from 'node:url';
import type { Context } from 'aws-lambda';
import { loadConfig } from '../lib/app/config.ts';
import { createLambdaApp, type LambdaApp } from '../lib/app/lambda.ts';
import { createLog } from '../lib/base/log.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { forLambda, type LambdaHandler } from '../lib/http/lambda.ts';
import type { BoundRoute } from '../lib/http/routes.ts';
import { bindEndpoints } from './endpoint.ts';
import { INFERENCE_ENDPOINTS } from './inference.ts';

export type LambdaFunction<Event, Result> = (event: Event, context: Context) => Promise<Result>;

/** Beside the folder of this file, in the sources as in a bundle. */
const MIGRATIONS = fileURLToPath(new URL('../migrations', import.meta.url));
/** One item at a time in each of at most eight invocations, unless said otherwise. */
const CONCURRENCY = '1';

/**
 * Makes a handler a Lambda function: the service is built with the first invocation of a container and kept for the next
 * ones; a start that failed is tried again. `env` is read then, not when the module is loaded.
 */
export function onLambda<Event, Result>(
  bind: (app: LambdaApp) => LambdaFunction<Event, Result>,
  env: Readonly<Record<string, string | undefined>> = process.env,
): LambdaFunction<Event, Result> {
  let built: Promise<{ app: LambdaApp; run: LambdaFunction<Event, Result> }> | null = null;
  const build = async () => {
    const config = loadConfig({ ...env, RELAY_BATCH_CONCURRENCY: env.RELAY_BATCH_CONCURRENCY || CONCURRENCY });
    const app = await createLambdaApp({ config, env, log: createLog(config.logLevel), migrations: MIGRATIONS });
    return { app, run: bind(app) };
  };
  return async (event, context) => {
    built ??= build().catch((error) => {
      built = null;
      throw error;
    });
    const { app, run } = await built;
    await app.prepare();
    return run(event, context);
  };
}

/** The function of this name behind API Gateway, with all endpoints that belong to it. */
export function apiFunction(name: string, app: LambdaApp): LambdaHandler {
  const endpoints = INFERENCE_ENDPOINTS.filter(({ lambda }) => lambda === name);
  return forLambda(routed(bindEndpoints(endpoints, app)), app);
}

/** Several routes as one handler: API Gateway has matched already, its route key says which. */
function routed(routes: readonly BoundRoute[]): ApiHandler {
  const byKey = new Map(routes.map(({ method, pattern, run }) => [`${method} ${pattern}`, run]));
  const only = routes.length === 1 ? routes[0]!.run : undefined;
  return (event, context) => {
    const run = only ?? byKey.get(event.routeKey);
    if (run === undefined) throw new Error(`no route for ${event.routeKey}`);
    return run(event, context);
  };
}
