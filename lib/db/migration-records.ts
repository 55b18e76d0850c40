import { createHash } from 'node:crypto';
import { ConfigError } from '../base/errors.ts';

// Which migrations a database has. A migration is known by its content and by its name without the number, so that a
// file may get another number or another name, and is still not run again. An edited file is a fault.

/** A numbered SQL file of this release. */
export interface Migration {
  version: number;
  /** File name: `0001_core.sql`. */
  name: string;
  text: string;
  checksum: string;
}

/** A row of `schema_migrations`; releases before checksums left theirs null. */
export interface MigrationRecord {
  version: number;
  name: string;
  checksum: string | null;
}

/** The changes to the records and to the schema of one database. */
export interface MigrationPlan {
  /** Records that get the number, name and checksum that this release knows them by; `from` is the recorded number. */
  corrections: { from: number; to: Migration }[];
  /** Migrations that have to run, in order. */
  missing: Migration[];
}

/**
 * Sha256 in hex of the statements alone. Blank lines, lines that are only a comment, and white space at the ends of lines
 * do not count: a comment may be fixed, and a checkout may have other line ends.
 */
export function checksumOf(text: string): string {
  const lines = text.split(/\r?\n/).map((line) => line.trimEnd());
  const statements = lines.filter((line) => line !== '' && !line.trimStart().startsWith('--'));
  return createHash('sha256').update(statements.join('\n')).digest('hex');
}

/**
 * Compares what is recorded with the files of this release. Records that fit no file belong to a newer release and stay.
 * Throws ConfigError for a file that was edited after it was applied, and for a number that the database has used for
 * something else.
 */
export function planMigrations(records: readonly MigrationRecord[], migrations: readonly Migration[]): MigrationPlan {
  const plan: MigrationPlan = { corrections: [], missing: [] };
  const free = new Set(records);
  const found = new Map<Migration, MigrationRecord>();
  const take = (migration: Migration, fits: (record: MigrationRecord) => boolean) => {
    const record = found.has(migration) ? undefined : [...free].find(fits);
    if (record === undefined) return;
    free.delete(record);
    found.set(migration, record);
  };
  // Names first: two files may have the same content, but never the same name.
  for (const migration of migrations) take(migration, ({ name }) => subjectOf(name) === subjectOf(migration.name));
  for (const migration of migrations) take(migration, ({ checksum }) => checksum === migration.checksum);

  const foreign = new Map([...free].map(({ version, name }) => [version, name]));
  for (const migration of migrations) {
    const { version, name, checksum } = migration;
    const record = found.get(migration);
    if (record !== undefined && record.checksum !== null && record.checksum !== checksum) {
      throw new ConfigError(
        `migration ${name} was edited after this database had applied it: restore the file, and put the change into a new migration`,
      );
    }
    const taken = record?.version === version ? undefined : foreign.get(version);
    if (taken !== undefined) {
      throw new ConfigError(
        `migration ${name} cannot be applied: this database has applied ${taken} under its number, which this release does not know`,
      );
    }
    if (record === undefined) plan.missing.push(migration);
    else if (record.version !== version || record.name !== name || record.checksum === null) {
      plan.corrections.push({ from: record.version, to: migration });
    }
  }
  return plan;
}

/** The name without its number: `core.sql`. */
export function subjectOf(name: string): string {
  return name.replace(/^\d+_/, '');
}
