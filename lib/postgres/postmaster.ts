import { type ChildProcess, spawn } from 'node:child_process';
import { constants, type FileHandle, open, readFile, readlink, realpath, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { sleep } from '../base/clock.ts';
import type { Account } from './account.ts';
import { SETTINGS } from './settings.ts';

/** The transport to the server: a socket in the cluster's own directory (null), or a port of 127.0.0.1. */
export type TcpPort = number | null;

/** The number in the socket's name. No port is opened for it. */
export const SOCKET_PORT = 5432;

export interface PostmasterOptions {
  program: string;
  cluster: string;
  account: Account | null;
  port: TcpPort;
  logFile: string;
}

/**
 * Returns the name of the cluster directory for a program that was started inside it. Another user cannot reach a
 * directory under a home of mode 0700 by its path, but it can reach its own working directory. Every process of
 * Postgres keeps this one. Without /proc it is the path itself.
 */
export function clusterArgument(cluster: string): string {
  return process.platform === 'linux' ? '/proc/self/cwd' : cluster;
}

/**
 * Starts Postgres in a session of its own: Ctrl-C reaches the whole foreground group, and Postgres must outlive the
 * server's last commit. It writes to a file, because a pipe would break if this process is killed.
 */
export async function spawnPostmaster(options: PostmasterOptions): Promise<ChildProcess> {
  const log = await openLog(options.logFile);
  try {
    const settings = { ...SETTINGS, ...transport(options.port) };
    return spawn(
      options.program,
      [
        '-D',
        clusterArgument(options.cluster),
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      {
        ...options.account,
        cwd: options.cluster,
        detached: true,
        stdio: ['ignore', log.fd, log.fd],
        env: { LC_ALL: 'C', PATH: process.env.PATH ?? '' },
      },
    );
  } finally {
    await log.close();
  }
}

function transport(port: TcpPort): Record<string, string> {
  return port === null
    ? { listen_addresses: '', unix_socket_directories: '.', port: String(SOCKET_PORT) }
    : { listen_addresses: '127.0.0.1', unix_socket_directories: '', port: String(port) };
}

/** Starts a new log after 10 MB. A log holds a few lines for each start and each refused statement. */
async function openLog(path: string): Promise<FileHandle> {
  const flags = constants.O_CREAT | constants.O_WRONLY | constants.O_APPEND;
  const log = await open(path, flags, 0o600);
  if ((await log.stat()).size > 10_000_000) await log.truncate(0);
  return log;
}

/** The facts that a running postmaster wrote about itself. */
export interface PidFile {
  pid: number;
  /** Null if it listens only on its socket. */
  port: TcpPort;
}

/** Reads `postmaster.pid`; null if it is missing or not complete yet. */
export async function readPidFile(cluster: string): Promise<PidFile | null> {
  const text = await readFile(join(cluster, 'postmaster.pid'), 'utf8').catch(() => '');
  const lines = text.split('\n');
  const pid = Number(lines[0]);
  if (!Number.isInteger(pid) || pid <= 0) return null;
  return { pid, port: lines[5]?.trim() ? Number(lines[3]) : null };
}

/**
 * True if `pid` is a running postgres process of this very cluster. No other process is ever sent a signal.
 *
 * @internal Exported for its tests.
 */
export async function isPostmasterOf(pid: number, cluster: string): Promise<boolean> {
  try {
    if (process.platform !== 'linux') {
      process.kill(pid, 0);
      return true;
    }
    const [program, directory] = await Promise.all([readlink(`/proc/${pid}/exe`), readlink(`/proc/${pid}/cwd`)]);
    // " (deleted)": the package was installed again under the running server.
    return /\/postgres( \(deleted\))?$/.test(program) && directory === (await realpath(cluster));
  } catch {
    return false; // ended, a zombie, or not ours to look at
  }
}

/** Returns the pid of this cluster's running postmaster; null if none runs. */
export async function runningPostmaster(cluster: string): Promise<number | null> {
  const file = await readPidFile(cluster);
  return file !== null && (await isPostmasterOf(file.pid, cluster)) ? file.pid : null;
}

/**
 * Removes lock files whose pid now belongs to a foreign process. Postgres treats any living process of that number as
 * its predecessor and would refuse for ever. A container starts with the same few pids each time.
 */
export async function removeForeignPidFile(cluster: string): Promise<void> {
  const file = await readPidFile(cluster);
  if (file === null || !isAlive(file.pid) || (await isPostmasterOf(file.pid, cluster))) return;
  await rm(join(cluster, 'postmaster.pid'), { force: true });
  await rm(join(cluster, `.s.PGSQL.${SOCKET_PORT}.lock`), { force: true });
}

/** True if a process of that number exists, whichever user owns it. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/**
 * Stops the postmaster of `cluster` and resolves when it has ended: fast shutdown (cuts off running statements, writes
 * a checkpoint), after `fastMs` immediate shutdown, 5 s later SIGKILL. Never signals a process that is not ours.
 */
export async function stopPostmaster(pid: number, cluster: string, fastMs: number): Promise<void> {
  const steps: [NodeJS.Signals, number][] = [
    ['SIGINT', fastMs],
    ['SIGQUIT', 5_000],
    ['SIGKILL', 5_000],
  ];
  for (const [signal, waitMs] of steps) {
    if (!(await isPostmasterOf(pid, cluster))) return;
    process.kill(pid, signal);
    const deadline = performance.now() + waitMs;
    while (performance.now() < deadline) {
      if (!(await isPostmasterOf(pid, cluster))) return;
      await sleep(20);
    }
  }
}
