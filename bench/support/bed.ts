import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { createLog } from '../../lib/base/log.ts';
import { migrate } from '../../lib/db/migrate.ts';
import { startEmbedded } from '../../lib/postgres/embedded.ts';
import { type ServerProcess, startServer } from '../../test/support/server.ts';
import { type SpawnedUpstream, spawnUpstream } from '../../test/support/spawn-upstream.ts';
import { catalogOf, KEYS, UPSTREAM_KEY } from './items.ts';

/** A database of its own, with a connection to look into it. */
export interface BenchDatabase {
  dsn: string;
  sql<Row extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]>;
  /** Returns the number of calls of `sql`, which are not the service's own. */
  queries(): number;
}

/** A server process on a database of the bed. */
export interface BenchServer extends ServerProcess {
  payloadDir: string;
}

export interface ServeOptions {
  database: BenchDatabase;
  /** The upstream of the items; without one they are sent nowhere. */
  upstream?: SpawnedUpstream;
  /** With 0 it runs no item. */
  concurrency: number;
  /** Shared by the replicas of one database; a directory of its own unless given. */
  payloadDir?: string;
  env?: Record<string, string>;
}

/** The environment of benchmarks: one Postgres for the whole run. All else ends after each section. */
export interface Bed {
  /** The file that Postgres logs to. */
  postgresLog: string;
  directory(): Promise<string>;
  database(): Promise<BenchDatabase>;
  upstream(options?: Parameters<typeof spawnUpstream>[0]): Promise<SpawnedUpstream>;
  server(options: ServeOptions): Promise<BenchServer>;
  /** Runs `work` when the section ends. */
  defer(work: () => Promise<unknown>): void;
  /** Ends everything that the section started, the last one first. */
  clear(): Promise<void>;
  close(): Promise<void>;
}

/** Starts Postgres in a temporary directory (of TMPDIR: a disk, not memory, or fsync costs nothing). */
export async function createBed(): Promise<Bed> {
  const home = await realpath(await mkdtemp(join(tmpdir(), 'relay-bench-')));
  const dataDir = join(home, 'postgres');
  const embedded = await startEmbedded({ dataDir, log: createLog('silent') });
  const deferred: (() => Promise<unknown>)[] = [];
  let databases = 0;

  const bed: Bed = {
    postgresLog: join(dataDir, 'postgres.log'),
    directory: () => mkdtemp(join(home, 'dir-')),
    defer: (work) => void deferred.push(work),
    async database() {
      const name = `bench_${++databases}`;
      const dsn = embedded.dsn.replace(/\/[^/]*$/, `/${name}`);
      await administer(embedded.dsn, `create database ${name}`);
      bed.defer(() => administer(embedded.dsn, `drop database ${name} with (force)`));
      await migrate(dsn, createLog('silent'));
      return openDatabase(bed, dsn);
    },
    async upstream(options) {
      const upstream = await spawnUpstream(options);
      bed.defer(() => upstream.stop());
      return upstream;
    },
    async server({ database, upstream, concurrency, payloadDir, env }) {
      const directory = await bed.directory();
      const payloads = payloadDir ?? join(directory, 'payloads');
      const server = await startServer({
        home: directory,
        dsn: database.dsn,
        catalog: catalogOf(upstream?.url ?? 'http://127.0.0.1:9'),
        payloadDir: payloads,
        env: {
          RELAY_BATCH_CONCURRENCY: String(concurrency),
          RELAY_LOG_LEVEL: 'warn',
          RELAY_SHUTDOWN_DEADLINE_S: '5',
          RELAY_MAX_REQUEST_BYTES: String(64 * 1024 * 1024),
          UPSTREAM_KEY,
          KEY_PLAIN: KEYS.plain,
          KEY_LIMITED: KEYS.limited,
          ...env,
        },
      });
      bed.defer(async () => server.running() && (await server.stop()));
      return { ...server, payloadDir: payloads };
    },
    async clear() {
      while (deferred.length > 0) await deferred.pop()!();
    },
    async close() {
      await bed.clear();
      await embedded.stop();
      await rm(home, { recursive: true, force: true, maxRetries: 5 });
    },
  };
  return bed;
}

/** Connects to a database that exists. The connection ends with the section. */
export function openDatabase(bed: Bed, dsn: string): BenchDatabase {
  const pool = new pg.Pool({ connectionString: dsn, max: 2, application_name: 'bench' });
  pool.on('error', () => {});
  bed.defer(() => pool.end());
  let queries = 0;
  return {
    dsn,
    queries: () => queries,
    async sql(text, values = []) {
      queries++;
      return (await pool.query(text, values)).rows;
    },
  };
}

async function administer(dsn: string, text: string): Promise<void> {
  const client = new pg.Client({ connectionString: dsn });
  await client.connect();
  try {
    await client.query(text);
  } finally {
    await client.end();
  }
}
