import { controlGuard } from '../handlers/admin.ts';
import { controlRoutes } from '../handlers/control.ts';
import { inferenceRoutes } from '../handlers/inference.ts';
import { usageReaders } from '../handlers/usage.ts';
import { sqsEvent, worker } from '../handlers/worker.ts';
import type { Config } from '../lib/app/config.ts';
import { type App, createApp } from '../lib/app/container.ts';
import { generateKey } from '../lib/auth/keys.ts';
import { ConfigError } from '../lib/base/errors.ts';
import type { Log } from '../lib/base/log.ts';
import { type HttpServer, type ServeOptions, serve } from '../lib/http/node.ts';
import { keyHealth } from '../lib/keypool/health.ts';
import type { Periods } from '../lib/worker/periods.ts';

/** A running server. */
export interface Server {
  app: App;
  /** The ports that the server listens on; null if the control port is off. */
  port: number;
  controlPort: number | null;
  stop(): Promise<void>;
}

/** Of the control port's small requests. Documents have a limit of their own. */
const CONTROL_BODY_BYTES = 16 * 1024;
/** Answers under way may finish for this long after the worker has stopped. */
const CLOSE_MS = 2000;

/**
 * The container form: the Lambda handlers behind two HTTP ports, woken through the queue. Both ports listen before the
 * service is ready; `/healthz` shows whether it is. Throws ConfigError.
 */
export async function startServer(
  config: Config,
  env: NodeJS.ProcessEnv,
  log: Log,
  periods?: Periods,
): Promise<Server> {
  let listenUrl: string | null = null;
  const app = await createApp({
    periods,
    config,
    env,
    log,
    listenUrl: () => listenUrl,
    onWake: (target, wake) => void worker(target)(sqsEvent(wake)),
    onMessages: (target, event) => worker(target)(event),
  });
  const servers: HttpServer[] = [];
  const stop = async () => {
    // New requests are refused at once. The worker's outcomes are flushed before the database stops.
    const closing = Promise.all(servers.map((server) => server.close(config.shutdownDeadlineMs + CLOSE_MS)));
    await app.stop(config.shutdownDeadlineMs, closing);
  };
  try {
    const inference = await listen(app, inferencePort(app));
    servers.push(inference);
    listenUrl = urlOf(config.host, inference.port);
    const control = config.controlPort === null ? null : await listen(app, controlPort(app, config.controlPort, env));
    if (control !== null) servers.push(control);
    return { app, port: inference.port, controlPort: control?.port ?? null, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** One of the two ports. */
interface Port extends Pick<ServeOptions, 'port' | 'routes' | 'maxBodyBytes' | 'guard'> {
  /** Named in the error when it cannot be listened on. */
  variable: 'RELAY_PORT' | 'RELAY_CONTROL_PORT';
}

function inferencePort(app: App): Port {
  const { port, maxRequestBytes } = app.config;
  return { variable: 'RELAY_PORT', port, routes: inferenceRoutes(app), maxBodyBytes: maxRequestBytes };
}

function controlPort(app: App, port: number, env: NodeJS.ProcessEnv): Port {
  return {
    variable: 'RELAY_CONTROL_PORT',
    port,
    routes: controlRoutes(controlApp(app, env)),
    maxBodyBytes: CONTROL_BODY_BYTES,
    guard: controlGuard(app.adminToken),
  };
}

async function listen({ config, log, metrics, bodies }: App, { variable, ...port }: Port): Promise<HttpServer> {
  try {
    return await serve({
      ...port,
      host: config.host,
      log,
      bodies,
      onRequest: ({ method, route, status, seconds }) =>
        metrics.httpSeconds.observe({ method, route, status: String(status) }, seconds),
    });
  } catch (cause) {
    throw cause instanceof ConfigError ? new ConfigError(`${variable}: ${cause.message}`, { cause }) : cause;
  }
}

/** Null for a host that stands for every interface: nobody can call that. */
function urlOf(host: string, port: number): string | null {
  if (host === '0.0.0.0' || host === '::') return null;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

function controlApp(app: App, env: NodeJS.ProcessEnv) {
  const { db, log, catalogCache, secretBox, adminToken, notReady, unwell, clock, pool, metrics, workers } = app;
  return {
    db,
    log,
    catalogCache,
    secretBox,
    adminToken,
    notReady,
    unwell,
    env,
    random: clock.random,
    generateKey: () => generateKey(clock.random),
    hostKeyHealth: (key: Parameters<typeof keyHealth>[1]) => keyHealth(db, key),
    resetHostKey: pool.reset,
    workers,
    usage: usageReaders(db),
    metrics: async () => ({ contentType: metrics.registry.contentType, body: await metrics.registry.metrics() }),
  };
}
