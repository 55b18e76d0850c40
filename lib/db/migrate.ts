import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Log } from '../base/log.ts';
import { lockForTransaction } from './advisory-locks.sql.ts';
import { createDb, type Database, type Db } from './database.ts';
import { appliedMigrations, createMigrationsTable, recordMigration, schemaVersion } from './schema-migrations.sql.ts';
import { NO_LIMIT_MS } from './silence.ts';

/** Where the numbered files are when the sources run as they are; a bundle passes its own folder. */
const MIGRATIONS = fileURLToPath(new URL('../../migrations', import.meta.url));

interface Migration {
  version: number;
  name: string;
}

/**
 * Applies every migration of `folder` that the database does not have, in order of its number, forward only. Gives how
 * many it applied: 0 when there was nothing to do, also when the database is newer than this release.
 *
 * Each one runs in a transaction of its own that holds the migration lock, and looks up what is applied under that lock:
 * starters that come at the same time wait for each other, and no session state is used. A migration that fails leaves
 * nothing behind and is thrown with its name; connection errors are thrown as they are.
 */
export async function migrate(directDsn: string, log: Log, folder = MIGRATIONS): Promise<number> {
  const migrations = await listMigrations(folder);
  const db = createDb({ dsn: directDsn, max: 1, prepared: false, applicationName: 'relay-batch migrate', log });
  try {
    let applied = 0;
    for (const migration of migrations) {
      if (await applyOne(db, migration, folder)) {
        applied++;
        log.info({ migration: migration.name }, 'migration applied');
      }
    }
    return applied;
  } finally {
    await db.close();
  }
}

/** The schema version that this release was written for: the highest number in `folder`, 0 when it is empty. */
export async function expectedVersion(folder = MIGRATIONS): Promise<number> {
  return (await listMigrations(folder)).at(-1)?.version ?? 0;
}

/** True when the database has every migration of this release, or more. False stands for `schema_outdated`. */
export async function isSchemaCurrent(db: Db, expected: number): Promise<boolean> {
  return (await schemaVersion(db)) >= expected;
}

async function applyOne(db: Database, migration: Migration, folder: string): Promise<boolean> {
  const text = await readFile(join(folder, migration.name), 'utf8');
  return db.transaction(async (tx) => {
    await lockForTransaction(tx, 'migrations');
    await createMigrationsTable(tx);
    if ((await appliedMigrations(tx)).has(migration.version)) return false;
    try {
      // No parameters: several statements are then sent as one simple query.
      await tx.query({ name: migration.name, text, values: [], withinMs: NO_LIMIT_MS });
    } catch (error) {
      throw named(error, migration.name);
    }
    await recordMigration(tx, migration.version, migration.name);
    return true;
  });
}

async function listMigrations(folder: string): Promise<Migration[]> {
  const migrations: Migration[] = [];
  for (const name of await readdir(folder)) {
    if (!name.endsWith('.sql')) continue;
    const version = Number(/^(\d{4})_[a-z0-9_]+\.sql$/.exec(name)?.[1]);
    if (!Number.isInteger(version)) throw new Error(`${name} is no migration name: 0001_what_it_does.sql`);
    migrations.push({ version, name });
  }
  migrations.sort((a, b) => a.version - b.version);
  for (const [i, migration] of migrations.entries()) {
    const before = migrations[i - 1];
    if (before?.version === migration.version) throw new Error(`${before.name} and ${migration.name} share a number`);
  }
  return migrations;
}

/** Puts the file's name in front of the message and keeps the SQLSTATE, which decides about a retry. */
function named(error: unknown, name: string): unknown {
  if (error instanceof Error) error.message = `migration ${name}: ${error.message}`;
  return error;
}
