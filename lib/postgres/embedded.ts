import type { ChildProcess } from 'node:child_process';
import { readFile, realpath } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type pg from 'pg';
import { sleep } from '../clock.ts';
import { ConfigError, reasonOf } from '../errors.ts';
import type { Log } from '../log.ts';
import { postgresAccount } from './account.ts';
import { findBinaries } from './binaries.ts';
import { ensureCluster, ROLE } from './cluster.ts';
import { becomeOwner, connectOwner } from './owner.ts';
import {
  isPostmasterOf,
  readPidFile,
  removeForeignPidFile,
  SOCKET_PORT,
  spawnPostmaster,
  stopPostmaster,
  type TcpPort,
} from './postmaster.ts';
import { postgresPassword, prepareDataDir } from './secrets.ts';

/** After a SIGKILL, lingering backends and their shared memory block the next start for seconds. */
const START_DEADLINE_MS = 20_000;
/** How long a running postmaster may leave a connection unanswered before it is taken for hung. */
const SILENT_MS = 10_000;
/** A fast shutdown writes a checkpoint: seconds after heavy load. */
const FAST_SHUTDOWN_MS = 60_000;
/** A path of a socket has at most 103 bytes on macOS and 107 on Linux. */
const MAX_SOCKET_PATH = 103;

export interface EmbeddedOptions {
  dataDir: string;
  log: Log;
}

export interface Embedded {
  /** Of the service's database; direct, and the same for the life of the process. */
  dsn: string;
  /** Stops Postgres and resolves when it is gone. Call it last, when all other connections are closed. */
  stop(): Promise<void>;
}

/**
 * Starts the embedded Postgres of `dataDir`, or adopts the one that a killed server left running, and becomes its owner.
 * Resolves when it takes statements: about a second on an empty data dir, else some 100 ms.
 *
 *   connection    open -> lock free: we own it     | lock held: ConfigError `data dir in use by pid N`
 *                 starting -> wait
 *                 absent   -> start Postgres       | its start fails: again, up to 20 s
 *                 silent   -> after 10 s: stop that postmaster, if it is one of this data dir
 *
 * When the owner's connection breaks later, the same steps run again with back-off until they succeed: a killed Postgres
 * comes back and nothing ends this process. Throws ConfigError for what needs a human.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<Embedded> {
  await prepareDataDir(options.dataDir);
  const dataDir = await realpath(options.dataDir);
  const account = await postgresAccount();
  const binaries = await findBinaries(account);
  const password = (await postgresPassword(dataDir)).value;
  const cluster = await ensureCluster(dataDir, binaries, account, password);
  const logFile = join(dataDir, 'postgres.log');
  const port = await choosePort(cluster);
  const log = options.log;

  let stopping = false;
  let child: ChildProcess | null = null;
  let owner: pg.Client | null = null;

  const dsnOf = (database: string) =>
    port === null
      ? `postgres://${ROLE}:${password}@${encodeURIComponent(cluster)}:${SOCKET_PORT}/${database}`
      : `postgres://${ROLE}:${password}@127.0.0.1:${port}/${database}`;

  const start = async () => {
    await removeForeignPidFile(cluster);
    const started = await spawnPostmaster({ program: binaries.postgres, cluster, account, port, logFile });
    child = started;
    started.once('error', (error) => log.error({ err: error.message }, 'embedded postgres cannot be started'));
    started.once('exit', () => {
      if (child === started) child = null;
    });
  };

  const bringUp = async (): Promise<pg.Client> => {
    let deadline = performance.now() + START_DEADLINE_MS;
    let silentSince: number | null = null;
    while (!stopping) {
      const attempt = await connectOwner(dsnOf('postgres'));
      if (attempt.kind === 'open') {
        try {
          await becomeOwner(attempt.client);
          return attempt.client;
        } catch (error) {
          await attempt.client.end().catch(() => {});
          if (error instanceof ConfigError) throw error;
        }
      } else if (attempt.kind === 'starting') {
        deadline = performance.now() + START_DEADLINE_MS; // recovery takes what it takes
      } else {
        const running = child !== null || (await runningPid(cluster)) !== null;
        if (!running) {
          silentSince = null;
          await start();
        } else {
          silentSince ??= performance.now();
          if (performance.now() - silentSince > SILENT_MS) {
            log.warn('embedded postgres does not answer: stopping it');
            await stopRunning(cluster, 0);
            silentSince = null;
          }
        }
      }
      if (performance.now() > deadline) throw new ConfigError(await startFailure(logFile));
      await sleep(25);
    }
    throw new Error('stopped');
  };

  const keepUp = async () => {
    for (let backoffMs = 100; !stopping; backoffMs = Math.min(backoffMs * 2, 5_000)) {
      try {
        own(await bringUp());
        log.info('embedded postgres is back');
        return;
      } catch (error) {
        if (!stopping) log.error({ err: reasonOf(error) }, 'embedded postgres is away');
        await sleep(stopping ? 0 : backoffMs);
      }
    }
  };

  let recovering: Promise<void> = Promise.resolve();
  const own = (client: pg.Client) => {
    owner = client;
    client.once('end', () => {
      if (stopping || owner !== client) return;
      log.warn('lost the connection to embedded postgres');
      recovering = keepUp();
    });
  };

  own(await bringUp());
  return {
    dsn: dsnOf(ROLE),
    async stop() {
      stopping = true;
      await recovering;
      await stopRunning(cluster, FAST_SHUTDOWN_MS);
      await owner?.end().catch(() => {});
    },
  };
}

/** The transport of a running postmaster, else the socket, else a free port when the socket's path is too long. */
async function choosePort(cluster: string): Promise<TcpPort> {
  const file = await readPidFile(cluster);
  if (file !== null && (await isPostmasterOf(file.pid, cluster))) return file.port;
  if (Buffer.byteLength(join(cluster, `.s.PGSQL.${SOCKET_PORT}`)) <= MAX_SOCKET_PATH) return null;
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' && address ? address.port : null));
    });
  });
}

async function runningPid(cluster: string): Promise<number | null> {
  const file = await readPidFile(cluster);
  return file !== null && (await isPostmasterOf(file.pid, cluster)) ? file.pid : null;
}

async function stopRunning(cluster: string, fastMs: number): Promise<void> {
  const pid = await runningPid(cluster);
  if (pid !== null) await stopPostmaster(pid, cluster, fastMs);
}

/** One sentence with the last complaint of the server's log. */
async function startFailure(logFile: string): Promise<string> {
  const lines = (await readFile(logFile, 'utf8').catch(() => '')).trimEnd().split('\n');
  const last = lines.findLast((line) => /FATAL|PANIC|ERROR/.test(line)) ?? lines.at(-1);
  return `embedded Postgres does not start (${last || 'it wrote no log'}): see ${logFile}`;
}
