#!/usr/bin/env node
import { loadConfig } from '../lib/app/config.ts';
import { ConfigError } from '../lib/base/errors.ts';
import { createLog } from '../lib/base/log.ts';
import { announcement } from './announce.ts';
import { type Server, startServer } from './serve.ts';

/** The time, beyond the deadline of running items, to flush outcomes and stop Postgres before the process exits. */
const STOP_GRACE_MS = 60_000;

let server: Server | null = null;
let signals = 0;
let firstAt = 0;
let doubled = process.env.npm_lifecycle_event === undefined;

/**
 * Returns true once for a copy of the first signal. A terminal signals the whole process group, and npm passes the
 * signal on as well. So under npm the server receives each signal twice, within a second.
 */
function isCopy(): boolean {
  if (doubled || performance.now() - firstAt > 1000) return false;
  doubled = true;
  return true;
}

function fail(error: unknown): void {
  process.stderr.write(`${error instanceof ConfigError ? error.message : (error as Error).stack}\n`);
  process.exitCode = 1;
}

async function stop(graceMs: number): Promise<never> {
  setTimeout(() => process.exit(1), graceMs).unref();
  await server?.stop().catch(fail);
  process.exit();
}

try {
  const config = loadConfig(process.env);
  const log = createLog(config.logLevel);
  // The reader of our output may have ended; that must not end the server.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (signals > 0 && isCopy()) return;
      if (signals++ > 0) process.exit(1); // a second signal does not wait
      firstAt = performance.now();
      log.info({ signal }, 'stopping');
      // Before the server has started there is nothing to stop yet: it is stopped as soon as it has.
      if (server !== null) void stop(config.shutdownDeadlineMs + STOP_GRACE_MS);
    });
  }
  server = await startServer(config, process.env, log);
  if (signals > 0) await stop(STOP_GRACE_MS);
  await server.app.ready;
  if (signals === 0) process.stderr.write(announcement(server, config));
} catch (error) {
  fail(error);
  await stop(STOP_GRACE_MS);
}
