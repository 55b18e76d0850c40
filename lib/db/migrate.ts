import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Log } from '../base/log.ts';
import { lockForTransaction } from './advisory-locks.sql.ts';
import { createDb, type Database, type Db } from './database.ts';
import { checksumOf, type Migration, planMigrations, subjectOf } from './migration-records.ts';
import {
  correctRecords,
  createMigrationsTable,
  readRecords,
  recordMigration,
  schemaVersion,
} from './schema-migrations.sql.ts';
import { NO_LIMIT_MS } from './silence.ts';

/** Where the numbered files are when the sources run as they are; a bundle passes its own folder. */
const MIGRATIONS = fileURLToPath(new URL('../../migrations', import.meta.url));

/**
 * Applies every migration of `folder` that the database does not have, in order of its number, forward only. Returns how
 * many it applied: 0 when there was nothing to do, also when the database is newer than this release.
 *
 * Each one runs in a transaction of its own that holds the migration lock, and looks up what is applied under that lock.
 * starters that come at the same time wait for each other, and no session state is used. A migration that was applied
 * under another number is recorded under its new one and not run again ("Migrations" in
 * docs/spec/engine-guarantees.md). A migration that fails leaves nothing behind and is thrown with its name. Throws
 * ConfigError for an edited migration; connection errors are thrown as they are.
 */
export async function migrate(directDsn: string, log: Log, folder = MIGRATIONS): Promise<number> {
  const migrations = await readMigrations(folder);
  const db = createDb({ dsn: directDsn, max: 1, prepared: false, applicationName: 'relay-batch migrate', log });
  try {
    const missing = await db.transaction((tx) => settleRecords(tx, migrations, log));
    let applied = 0;
    for (const migration of missing) {
      if (await applyOne(db, migration, migrations, log)) {
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

async function applyOne(
  db: Database,
  migration: Migration,
  migrations: readonly Migration[],
  log: Log,
): Promise<boolean> {
  return db.transaction(async (tx) => {
    if (!(await settleRecords(tx, migrations, log)).includes(migration)) return false;
    try {
      // No parameters: several statements are then sent as one simple query.
      await tx.query({ name: migration.name, text: migration.text, values: [], withinMs: NO_LIMIT_MS });
    } catch (error) {
      throw named(error, migration.name);
    }
    await recordMigration(tx, migration);
    return true;
  });
}

/** Takes the migration lock, brings the records to what this release knows, and returns the migrations that must run. */
async function settleRecords(tx: Db, migrations: readonly Migration[], log: Log): Promise<Migration[]> {
  await lockForTransaction(tx, 'migrations');
  await createMigrationsTable(tx);
  const { corrections, missing } = planMigrations(await readRecords(tx), migrations);
  if (corrections.length > 0) await correctRecords(tx, corrections);
  for (const { from, to } of corrections) {
    if (from !== to.version) log.info({ migration: to.name, was: from }, 'migration recorded under its new number');
  }
  return missing;
}

async function readMigrations(folder: string): Promise<Migration[]> {
  return Promise.all(
    (await listMigrations(folder)).map(async ({ version, name }) => {
      const text = await readFile(join(folder, name), 'utf8');
      return { version, name, text, checksum: checksumOf(text) };
    }),
  );
}

/** Names and numbers alone. Throws for a name that is not one, and unless the numbers are 1, 2, 3 ... */
async function listMigrations(folder: string): Promise<Pick<Migration, 'version' | 'name'>[]> {
  const migrations: Pick<Migration, 'version' | 'name'>[] = [];
  for (const name of await readdir(folder)) {
    if (!name.endsWith('.sql')) continue;
    const version = Number(/^(\d{4})_[a-z0-9_]+\.sql$/.exec(name)?.[1]);
    if (!Number.isInteger(version)) throw new Error(`${name} is no migration name: 0001_what_it_does.sql`);
    migrations.push({ version, name });
  }
  migrations.sort((a, b) => a.version - b.version);
  const subjects = new Map<string, string>();
  for (const [i, { version, name }] of migrations.entries()) {
    const before = migrations[i - 1];
    if (before?.version === version) throw new Error(`${before.name} and ${name} share a number`);
    if (version !== i + 1) throw new Error(`${name} leaves a gap: its number must be ${i + 1}`);
    const namesake = subjects.get(subjectOf(name));
    if (namesake !== undefined) throw new Error(`${namesake} and ${name} share a name`);
    subjects.set(subjectOf(name), name);
  }
  return migrations;
}

/** Puts the file's name in front of the message and keeps the SQLSTATE, which decides about a retry. */
function named(error: unknown, name: string): unknown {
  if (error instanceof Error) error.message = `migration ${name}: ${error.message}`;
  return error;
}
