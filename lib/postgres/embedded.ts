import { realpath } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type pg from 'pg';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import { postgresAccount } from './account.ts';
import { findBinaries } from './binaries.ts';
import { bringUp } from './bring-up.ts';
import { ensureCluster, ROLE } from './cluster.ts';
import { serverDsn } from './find.ts';
import { postgresPassword, prepareDataDir } from './generated-secrets.ts';
import {
  type PostmasterOptions,
  readPidFile,
  runningPostmaster,
  SOCKET_PORT,
  stopPostmaster,
  type TcpPort,
} from './postmaster.ts';

/** A fast shutdown writes a checkpoint, which takes seconds after heavy load. */
const FAST_SHUTDOWN_MS = 60_000;
/** The path of a socket has at most 103 bytes on macOS and 107 on Linux. */
const MAX_SOCKET_PATH = 103;
const RETRY_MIN_MS = 100;
const RETRY_MAX_MS = 5000;

export interface EmbeddedOptions {
  dataDir: string;
  log: Log;
}

export interface Embedded {
  /** The DSN of the service's database: direct, and the same for the life of the process. */
  dsn: string;
  /** Stops Postgres and resolves when it has ended. Call it last, when all other connections are closed. */
  stop(): Promise<void>;
}

/**
 * Starts the embedded Postgres of `dataDir`, or adopts the one that a killed server left running, and becomes its
 * owner. Resolves when it accepts statements: about a second on an empty data dir, else some 100 ms.
 *
 * If Postgres is killed later, or a connection is cut, it is started or connected again with back-off. None of that
 * ends this process. Throws ConfigError if the start needs a human: the data dir is in use, not usable, or of another
 * version; Postgres is not installed or does not start.
 */
export async function startEmbedded(options: EmbeddedOptions): Promise<Embedded> {
  const { log } = options;
  await prepareDataDir(options.dataDir);
  const dataDir = await realpath(options.dataDir);
  const account = await postgresAccount();
  const binaries = await findBinaries(account);
  const password = (await postgresPassword(dataDir)).value;
  const cluster = await ensureCluster(dataDir, binaries, account, password);
  const port = await choosePort(cluster);
  const logFile = join(dataDir, 'postgres.log');
  const postmaster: PostmasterOptions = { program: binaries.postgres, cluster, account, port, logFile };
  const server = serverDsn(cluster, port, password);

  const stop = await supervise((signal) => bringUp(`${server}/postgres`, postmaster, log, signal), log);
  return {
    dsn: `${server}/${ROLE}`,
    async stop() {
      const connection = await stop();
      const pid = await runningPostmaster(cluster);
      if (pid !== null) await stopPostmaster(pid, cluster, FAST_SHUTDOWN_MS);
      await connection.end().catch(() => {});
    },
  };
}

/**
 * Connects once, and again whenever the connection ends, with back-off from 100 ms to 5 s. Returns a function that ends
 * this and hands over the last connection. It is still open and still holds the owner's lock: nobody else may start
 * Postgres while it stops.
 */
async function supervise(
  connect: (signal: AbortSignal) => Promise<pg.Client>,
  log: Log,
): Promise<() => Promise<pg.Client>> {
  const stopping = new AbortController();
  const { signal } = stopping;
  let reconnecting: Promise<void> = Promise.resolve();

  const watch = (client: pg.Client): pg.Client => {
    client.once('end', () => {
      if (signal.aborted) return;
      log.warn('lost the connection to the embedded Postgres');
      reconnecting = reconnect();
    });
    return client;
  };
  const reconnect = async () => {
    const connected = await retryUntil(() => connect(signal), {
      min: RETRY_MIN_MS,
      max: RETRY_MAX_MS,
      signal,
      onFirst: (error) => log.error({ err: reasonOf(error) }, 'the embedded Postgres is unavailable'),
    });
    if (connected.aborted) return;
    current = watch(connected.value);
    log.info('the embedded Postgres is available again');
  };

  let current = watch(await connect(signal));
  return async () => {
    stopping.abort();
    await reconnecting;
    return current;
  };
}

/** Returns the transport of a running postmaster, else the socket, or a free port if its path is too long. */
async function choosePort(cluster: string): Promise<TcpPort> {
  if ((await runningPostmaster(cluster)) !== null) return (await readPidFile(cluster))?.port ?? null;
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
