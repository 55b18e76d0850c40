import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import pg from 'pg';
import { postgresAccount } from '../../lib/postgres/account.ts';
import { freePort } from './server.ts';

/** A transaction-mode pooler before every database of a Postgres server. */
export interface PgBouncer {
  /** The way to a database that goes through it. */
  dsnOf(database: string): string;
  stop(): Promise<void>;
}

/** From this version on it knows protocol-level prepared statements, and has to be configured not to. */
const KNOWS_PREPARED = [1, 21] as const;

/** The version of the `pgbouncer` on the PATH, or null without one. */
export function pgBouncerVersion(): readonly [number, number] | null {
  const { status, stdout } = spawnSync('pgbouncer', ['--version'], { encoding: 'utf8' });
  const [, major, minor] = /PgBouncer (\d+)\.(\d+)/.exec(stdout ?? '') ?? [];
  return status === 0 && major !== undefined ? [Number(major), Number(minor)] : null;
}

/**
 * Starts it on a port of its own, with no feature that keeps a session's state. It takes no startup parameter that it does
 * not know, and has `poolSize` server connections for all clients of a database. `dsn` is a direct one of the server.
 */
export async function startPgBouncer(dsn: string, { poolSize = 20 } = {}): Promise<PgBouncer> {
  const [server, port, account, dir] = [
    new URL(dsn),
    await freePort(),
    await postgresAccount(),
    await mkdtemp(join(tmpdir(), 'relay-pgbouncer-')),
  ];
  const [major, minor] = pgBouncerVersion()!;
  const prepared = major > KNOWS_PREPARED[0] || minor >= KNOWS_PREPARED[1];
  const user = decodeURIComponent(server.username);
  const host = decodeURIComponent(server.hostname);
  const config = join(dir, 'pgbouncer.ini');
  await writeFile(
    config,
    `[databases]
* = host='${host}' port=${server.port || 5432} user='${user}' password='${decodeURIComponent(server.password)}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = ${poolSize}
max_client_conn = 1000
ignore_startup_parameters =
server_reset_query_always = 0
${prepared ? 'max_prepared_statements = 0' : ''}
`,
  );
  // As root: Postgres and the pooler are another user, who may not even pass through the directory of a test.
  if (account !== null && host.startsWith('/')) await chmod(dirname(host), 0o711);
  if (account !== null) for (const path of [dir, config]) await chown(path, account.uid, account.gid);
  const child = spawn('pgbouncer', [config], { ...account, cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] });
  let errors = '';
  child.stderr.on('data', (chunk: Buffer) => {
    errors += chunk;
  });
  const exited = once(child, 'exit');
  // A killed test run ends this pipe without a word: the pooler goes too.
  const watcher = spawn('sh', ['-c', 'read -r finished || kill -KILL "$0"; rm -rf "$1"', String(child.pid), dir], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  watcher.unref();

  const dsnOf = (database: string) => `postgres://${server.username}@127.0.0.1:${port}/${database}`;
  const reach = async () => {
    const client = new pg.Client({ connectionString: dsnOf(server.pathname.slice(1)), connectionTimeoutMillis: 2000 });
    client.on('error', () => {});
    await client.connect();
    await client.end();
  };
  const deadline = performance.now() + 10_000;
  for (let reached = false; !reached; ) {
    await reach().then(
      () => {
        reached = true;
      },
      async (cause) => {
        if (child.exitCode !== null || performance.now() > deadline) {
          throw new Error(`pgbouncer does not answer: ${errors}`, { cause });
        }
        await new Promise((resolve) => setTimeout(resolve, 25));
      },
    );
  }
  return {
    dsnOf,
    async stop() {
      child.kill('SIGKILL');
      await exited;
      watcher.stdin.end('finished\n');
      await rm(dir, { recursive: true, force: true });
    },
  };
}
