import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type pg from 'pg';
import { sleep } from '../base/clock.ts';
import { ConfigError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { becomeOwner, connectOwner } from './owner.ts';
import {
  type PostmasterOptions,
  removeForeignPidFile,
  runningPostmaster,
  spawnPostmaster,
  stopPostmaster,
} from './postmaster.ts';

/** After a SIGKILL, lingering backends and their shared memory block the next start for seconds. */
const START_DEADLINE_MS = 20_000;
/** The time that a running postmaster may leave a connection unanswered before it counts as hung. */
const SILENT_MS = 10_000;

/**
 * Returns the connection that owns the data dir, with Postgres running behind it:
 *
 *   connection    open -> lock free: we own it     | lock held: ConfigError `data dir in use by pid N`
 *                 starting -> wait, however long recovery takes
 *                 absent   -> start Postgres       | its start fails: again, up to 20 s
 *                 silent   -> after 10 s: stop that postmaster, if it is one of this data dir
 *
 * Throws ConfigError with the last complaint of Postgres if it does not start, and the signal's reason if `signal`
 * aborts. A server that it has started by then is stopped.
 */
export async function bringUp(
  dsn: string,
  options: PostmasterOptions,
  log: Log,
  signal: AbortSignal,
): Promise<pg.Client> {
  const { cluster } = options;
  let child: ChildProcess | null = null;
  let deadline = performance.now() + START_DEADLINE_MS;
  let silentSince: number | null = null;
  for (; !signal.aborted; await sleep(25, signal)) {
    const attempt = await connectOwner(dsn);
    if (attempt.kind === 'open') {
      const owned = await becomeOwner(attempt.client).catch(async (error: unknown) => {
        await attempt.client.end().catch(() => {});
        if (error instanceof ConfigError) throw error;
        return false; // the connection broke: look again
      });
      if (owned) return attempt.client;
    } else if (attempt.kind === 'starting') {
      deadline = performance.now() + START_DEADLINE_MS;
    } else if (!isRunning(child) && (await runningPostmaster(cluster)) === null) {
      silentSince = null;
      await removeForeignPidFile(cluster);
      child = await spawnPostmaster(options);
      child.once('error', (error) => log.error({ err: error.message }, 'the embedded Postgres cannot be started'));
    } else {
      silentSince ??= performance.now();
      if (performance.now() - silentSince > SILENT_MS) {
        log.warn('the embedded Postgres does not answer: stopping it');
        const pid = await runningPostmaster(cluster);
        if (pid !== null) await stopPostmaster(pid, cluster, 0);
        silentSince = null;
        deadline = performance.now() + START_DEADLINE_MS;
      }
    }
    if (performance.now() > deadline) throw new ConfigError(await startFailure(options.logFile));
  }
  if (isRunning(child)) {
    // It may not yet have written its pid file, which a stop needs to find it.
    const exited = once(child, 'exit');
    child.kill('SIGINT');
    await exited;
  }
  throw signal.reason;
}

function isRunning(child: ChildProcess | null): child is ChildProcess {
  return child?.pid !== undefined && child.exitCode === null && child.signalCode === null;
}

/** Returns one sentence with the last complaint of the server's log. */
async function startFailure(logFile: string): Promise<string> {
  const lines = (await readFile(logFile, 'utf8').catch(() => '')).trimEnd().split('\n');
  const telling = /(FATAL|PANIC|ERROR): (?!.*the database system is)/;
  const last = lines.findLast((line) => telling.test(line)) ?? lines.at(-1);
  return `embedded Postgres does not start (${last || 'it wrote no log'}): see ${logFile}`;
}
