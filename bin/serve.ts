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
import type { BoundRoute } from '../lib/http/routes.ts';
import { keyHealth } from '../lib/keypool/health.ts';

/** A running server. */
export interface Server {
  app: App;
  /** Ports that are listened on; null where the control port is off. */
  port: number;
  controlPort: number | null;
  stop(): Promise<void>;
}

/** Control requests are documents of people, not payloads. */
const CONTROL_BODY_BYTES = 4 * 1024 * 1024;
/** Answers under way may finish for this long after the stop of the worker. */
const CLOSE_MS = 2000;

/**
 * The container form: the Lambda handlers behind two HTTP ports, woken through the queue. Both ports listen before the
 * service is ready; `/healthz` tells them apart. Throws ConfigError.
 */
export async function startServer(config: Config, env: NodeJS.ProcessEnv, log: Log): Promise<Server> {
  let listenUrl: string | null = null;
  const app = await createApp({
    config,
    env,
    log,
    listenUrl: () => listenUrl,
    onWake: (self, wake) => void worker(self)(sqsEvent(wake)),
    onMessages: (self, event) => worker(self)(event),
  });
  const servers: HttpServer[] = [];
  const listen = async (
    variable: 'RELAY_PORT' | 'RELAY_CONTROL_PORT',
    port: number,
    routes: BoundRoute[],
    maxBodyBytes: number,
    guard?: ServeOptions['guard'],
  ) => {
    const server = await serve({
      host: config.host,
      port,
      routes,
      maxBodyBytes,
      guard,
      log,
      onRequest: ({ method, route, status, seconds }) =>
        app.metrics.httpSeconds.observe({ method, route, status: String(status) }, seconds),
    }).catch((cause) => {
      throw cause instanceof ConfigError ? new ConfigError(`${variable}: ${cause.message}`, { cause }) : cause;
    });
    servers.push(server);
    return server.port;
  };
  const stop = async () => {
    // New requests are refused at once; the worker's outcomes are flushed before the database goes.
    const closing = Promise.all(servers.map((server) => server.close(config.shutdownDeadlineMs + CLOSE_MS)));
    await app.stop(config.shutdownDeadlineMs, closing);
  };
  try {
    const port = await listen('RELAY_PORT', config.port, inferenceRoutes(app), config.maxRequestBytes);
    listenUrl = urlOf(config.host, port);
    const controlPort =
      config.controlPort === null
        ? null
        : await listen(
            'RELAY_CONTROL_PORT',
            config.controlPort,
            controlRoutes(controlApp(app, env)),
            CONTROL_BODY_BYTES,
            controlGuard(app.adminToken),
          );
    return { app, port, controlPort, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** Null for a host that stands for every interface: nobody can call that. */
function urlOf(host: string, port: number): string | null {
  if (host === '0.0.0.0' || host === '::') return null;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}

function controlApp(app: App, env: NodeJS.ProcessEnv) {
  const { db, log, catalogCache, secretBox, adminToken, notReady, unwell, clock, pool, metrics } = app;
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
    usage: usageReaders(db),
    metrics: async () => ({ contentType: metrics.registry.contentType, body: await metrics.registry.metrics() }),
  };
}
