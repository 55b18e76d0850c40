import { spawn } from 'node:child_process';
import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import type { TestProject } from 'vitest/node';
import { createLog } from '../../lib/base/log.ts';
import { migrate } from '../../lib/db/migrate.ts';
import { startEmbedded } from '../../lib/postgres/embedded.ts';
import { startPgBouncer } from './pgbouncer.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** DSN of the server's maintenance database. */
    postgresDsn: string;
    /** Name of the migrated database that tests clone. */
    postgresTemplate: string;
    /** DSN, without a database, of the pooler that all tests go through (RELAY_TEST_PGBOUNCER=1); else null. */
    pgBouncerDsn: string | null;
  }
}

interface Running {
  dsn: string;
  template: string;
  bouncerDsn: string | null;
  stop(): Promise<void>;
}

// One server for all projects of a run. They load this module once each, so the server lives outside of it.
const shared = globalThis as { relayTestPostgres?: { running: Promise<Running>; users: number } };

/** Starts the run's Postgres, or uses RELAY_TEST_PG_DSN, migrates the template and tells the tests where it is. */
export async function setup(project: TestProject): Promise<void> {
  shared.relayTestPostgres ??= { running: start(), users: 0 };
  shared.relayTestPostgres.users++;
  const { dsn, template, bouncerDsn } = await shared.relayTestPostgres.running;
  project.provide('postgresDsn', dsn);
  project.provide('postgresTemplate', template);
  project.provide('pgBouncerDsn', bouncerDsn);
}

/** Stops the server with the last project that used it. */
export async function teardown(): Promise<void> {
  const used = shared.relayTestPostgres;
  if (used === undefined || --used.users > 0) return;
  delete shared.relayTestPostgres;
  await (await used.running).stop();
}

async function start(): Promise<Running> {
  const given = process.env.RELAY_TEST_PG_DSN;
  const server = given ? { dsn: given, stop: async () => {} } : await startServer();
  const template = `relay_test_${process.pid}_${Date.now().toString(36)}`;
  const run = async (text: string) => {
    const client = new pg.Client({ connectionString: server.dsn });
    await client.connect();
    try {
      await client.query(text);
    } finally {
      await client.end();
    }
  };
  try {
    await run(`create database ${template}`);
    const dsn = new URL(server.dsn);
    dsn.pathname = `/${template}`;
    await migrate(dsn.href, createLog('silent'));
  } catch (error) {
    await server.stop();
    throw error;
  }
  const bouncer = process.env.RELAY_TEST_PGBOUNCER === '1' ? await startPgBouncer(server.dsn) : null;
  return {
    dsn: server.dsn,
    template,
    bouncerDsn: bouncer?.dsnOf('').replace(/\/$/, '') ?? null,
    async stop() {
      await bouncer?.stop();
      await run(`drop database if exists ${template} with (force)`);
      await server.stop();
    },
  };
}

/** Ends the server of a data dir, if there is one, and removes the directory. */
const CLEAN_UP = `
read -r finished && exit
if read -r pid <"$0/postgres/postmaster.pid"; then
  kill -QUIT "$pid"
  n=0
  while [ $((n += 1)) -lt 100 ] && kill -0 "$pid"; do sleep 0.1; done
fi
rm -rf "$0"`;

async function startServer(): Promise<{ dsn: string; stop(): Promise<void> }> {
  const dataDir = await realpath(await mkdtemp(join(tmpdir(), 'relay-test-')));
  // A killed run closes this pipe without a word: its server, and no other, goes with it.
  const watcher = spawn('sh', ['-c', CLEAN_UP, dataDir], { detached: true, stdio: ['pipe', 'ignore', 'ignore'] });
  watcher.unref();
  const embedded = await startEmbedded({ dataDir, log: createLog('silent') });
  return {
    dsn: embedded.dsn,
    async stop() {
      await embedded.stop();
      await rm(dataDir, { recursive: true, force: true });
      watcher.stdin.end('finished\n');
    },
  };
}
