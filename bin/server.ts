#!/usr/bin/env node
import { loadConfig } from '../lib/app/config.ts';
import { ConfigError } from '../lib/base/errors.ts';
import { createLog } from '../lib/base/log.ts';
import { announce } from './announce.ts';
import { type Server, startServer } from './serve.ts';

/** Beyond the deadline of running items: what flushing outcomes and stopping Postgres may take before we give up. */
const STOP_GRACE_MS = 60_000;

let server: Server | null = null;
let signals = 0;
let firstAt = 0;
let doubled = process.env.npm_lifecycle_event === undefined;

/**
 * A terminal signals the whole process group, and npm passes the signal on as well: under npm the server gets each twice,
 * and the copy is no second signal. One is let pass, within a second of the first.
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
  // Whoever read our output may be gone; that is no reason to end.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {});
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
    process.on(signal, () => {
      if (signals > 0 && isCopy()) return;
      if (signals++ > 0) process.exit(1); // a second signal does not wait
      firstAt = performance.now();
      log.info({ signal }, 'stopping');
      // Before the server stands there is nothing to stop yet: it is stopped as soon as it does.
      if (server !== null) void stop(config.shutdownDeadlineMs + STOP_GRACE_MS);
    });
  }
  server = await startServer(config, process.env, log);
  if (signals > 0) await stop(STOP_GRACE_MS);
  await server.app.ready;
  if (signals === 0) announce(server, config);
} catch (error) {
  fail(error);
  await stop(STOP_GRACE_MS);
}
