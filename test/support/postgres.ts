import { randomBytes } from 'node:crypto';
import pg from 'pg';
import { inject } from 'vitest';
import { createLog } from '../../lib/base/log.ts';
import { createDb, type Database } from '../../lib/db/database.ts';
import type { PgBouncer } from './pgbouncer.ts';
import { sql } from './sql.ts';

const OBJECT_IN_USE = '55006';

export interface TestDatabase {
  /** Direct, whatever `db` goes through. */
  dsn: string;
  /** The settings of a service for it. */
  postgresEnv: Record<string, string>;
  db: Database;
  /** Runs a statement of the test's own and returns its rows. */
  sql<Row extends pg.QueryResultRow = pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Row[]>;
  /** Closes the pool and drops the database, even with open connections. */
  close(): Promise<void>;
}

/**
 * A database of its own, cloned from the run's migrated template (some 30 ms). Make one for each test file, or for each
 * test that needs an empty one. Only in `test/integration` and `test/acceptance`: unit tests have no Postgres.
 *
 * With RELAY_TEST_PGBOUNCER=1 the pool, and every service, goes through a transaction-mode PgBouncer.
 */
export async function createTestDatabase(bouncer: Pick<PgBouncer, 'dsnOf'> | null = ofTheRun()): Promise<TestDatabase> {
  const name = `relay_test_${randomBytes(8).toString('hex')}`;
  await administer(`create database ${name} template ${inject('postgresTemplate')}`);
  const url = new URL(inject('postgresDsn'));
  url.pathname = `/${name}`;
  const dsn = url.href;
  const pooled = bouncer?.dsnOf(name);
  const db = createDb({
    dsn: pooled ?? dsn,
    max: 8,
    prepared: pooled === undefined,
    applicationName: 'test',
    log: createLog('silent'),
  });
  return {
    dsn,
    postgresEnv: pooled === undefined ? { RELAY_PG_DSN: dsn } : { RELAY_PG_DSN: pooled, RELAY_PG_DIRECT_DSN: dsn },
    db,
    sql: (text, values) => sql(db, text, values),
    async close() {
      await db.close();
      await administer(`drop database if exists ${name} with (force)`);
    },
  };
}

/** The catalogue version as committed. */
export async function catalogVersion({ sql }: TestDatabase): Promise<number> {
  return (await sql<{ version: number }>('select version from catalog_state'))[0]!.version;
}

function ofTheRun(): Pick<PgBouncer, 'dsnOf'> | null {
  const dsn = inject('pgBouncerDsn');
  return dsn === null ? null : { dsnOf: (name) => `${dsn}/${name}` };
}

async function administer(text: string): Promise<void> {
  const client = new pg.Client({ connectionString: inject('postgresDsn') });
  await client.connect();
  try {
    for (let attempt = 1; ; attempt++) {
      try {
        await client.query(text);
        return;
      } catch (error) {
        // Autovacuum may be looking at the template at this moment.
        if ((error as { code?: string }).code !== OBJECT_IN_USE || attempt >= 5) throw error;
      }
    }
  } finally {
    await client.end();
  }
}
