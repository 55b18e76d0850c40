import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { createLog } from '../../../lib/base/log.ts';
import { createDb, type Database } from '../../../lib/db/database.ts';
import { postgresAccount } from '../../../lib/postgres/account.ts';
import { findBinaries } from '../../../lib/postgres/binaries.ts';
import { ensureCluster, ROLE } from '../../../lib/postgres/cluster.ts';
import { runningPostmaster, spawnPostmaster } from '../../../lib/postgres/postmaster.ts';
import { freePort } from '../../support/server.ts';
import { eventually } from './calls.ts';

/** A Postgres of the test's own that it may stop: to the service it is one that somebody else runs. */
export interface PostgresServer {
  dsn: string;
  db: Database;
  start(): Promise<void>;
  /** `fast` ends every connection and writes a checkpoint; `immediate` leaves it to recovery. */
  stop(how: 'fast' | 'immediate'): Promise<void>;
  /** Stops or continues every process of it: to its clients it stands still. */
  freeze(frozen: boolean): Promise<void>;
  close(): Promise<void>;
}

const SIGNALS = { fast: 'SIGINT', immediate: 'SIGQUIT' } as const;
/** A killed test run ends this pipe without a word: the server goes too. */
const CLEAN_UP = `
read -r finished && exit
read -r pid <"$0/postgres/postmaster.pid" && kill -QUIT "$pid"
sleep 2
rm -rf "$0"`;

/** Makes a cluster and starts it, listening on a port of 127.0.0.1. */
export async function startPostgres(): Promise<PostgresServer> {
  const dir = await realpath(await mkdtemp(join(tmpdir(), 'relay-postgres-')));
  const watcher = spawn('sh', ['-c', CLEAN_UP, dir], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
  watcher.unref();
  const account = await postgresAccount();
  const binaries = await findBinaries(account);
  const cluster = await ensureCluster(dir, binaries, account, 'secret');
  const port = await freePort();
  const dsn = `postgres://${ROLE}:secret@127.0.0.1:${port}/postgres`;
  const options = { program: binaries.postgres, cluster, account, port, logFile: join(dir, 'postgres.log') };

  const answers = async () => {
    const client = new pg.Client({ connectionString: dsn });
    client.on('error', () => {});
    return client.connect().then(
      () => client.end().then(() => true),
      () => false,
    );
  };
  const start = async () => {
    (await spawnPostmaster(options)).unref();
    await eventually(answers, (up) => up);
  };
  const stop = async (how: 'fast' | 'immediate') => {
    const pid = await runningPostmaster(cluster);
    if (pid === null) return;
    process.kill(pid, SIGNALS[how]);
    await eventually(
      () => runningPostmaster(cluster),
      (running) => running === null,
    );
  };

  const freeze = async (frozen: boolean) => {
    const postmaster = (await runningPostmaster(cluster))!;
    // The postmaster first, so that no new process escapes; it continues last.
    const children = () => readFileSync(`/proc/${postmaster}/task/${postmaster}/children`, 'utf8').trim().split(' ');
    if (frozen) process.kill(postmaster, 'SIGSTOP');
    for (const pid of children()) process.kill(Number(pid), frozen ? 'SIGSTOP' : 'SIGCONT');
    if (!frozen) process.kill(postmaster, 'SIGCONT');
  };

  await start();
  const db = createDb({ dsn, max: 4, prepared: true, applicationName: 'test', log: createLog('silent') });
  return {
    dsn,
    db,
    start,
    stop,
    freeze,
    async close() {
      await db.close();
      await stop('immediate');
      await rm(dir, { recursive: true, force: true, maxRetries: 10 });
      watcher.stdin.end('finished\n');
    },
  };
}
