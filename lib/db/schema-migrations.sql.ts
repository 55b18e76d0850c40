import type { Db } from './database.ts';
import { sqlState, UNDEFINED_TABLE } from './errors.ts';
import type { Migration, MigrationPlan, MigrationRecord } from './migration-records.ts';

/**
 * Makes the table of applied migrations, or adds what releases before checksums lacked. Call it under the lock, because
 * two `if not exists` at once can collide.
 */
export async function createMigrationsTable(tx: Db): Promise<void> {
  await tx.query({
    name: 'schema_migrations_create',
    text: `create table if not exists schema_migrations (
      version integer primary key,
      name text not null,
      applied_at timestamptz not null default clock_timestamp(),
      checksum text
    )`,
    values: [],
  });
  // Looked up first: an ALTER TABLE that changes nothing still waits for every reader, a dump of hours among them.
  const found = await tx.query({
    name: 'schema_migrations_has_checksum',
    text: `select attname from pg_attribute
      where attrelid = 'schema_migrations'::regclass and attname = 'checksum' and not attisdropped`,
    values: [],
  });
  if (found.rowCount === 1) return;
  await tx.query({
    name: 'schema_migrations_add_checksum',
    text: 'alter table schema_migrations add column if not exists checksum text',
    values: [],
  });
}

/** Every migration that is recorded as applied, by number. Throws 42P01 on a database that was never migrated. */
export async function readRecords(db: Db): Promise<MigrationRecord[]> {
  const result = await db.query<MigrationRecord>({
    name: 'schema_migrations_read',
    text: 'select version, name, checksum from schema_migrations order by version',
    values: [],
  });
  return result.rows;
}

/** Records one migration as applied. A second record of a version violates the primary key. */
export async function recordMigration(tx: Db, { version, name, checksum }: Migration): Promise<void> {
  await tx.query({
    name: 'schema_migrations_record',
    text: 'insert into schema_migrations (version, name, checksum) values ($1::integer, $2::text, $3::text)',
    values: [version, name, checksum],
  });
}

/** Writes new numbers, names and checksums into records. By way of negative numbers: a new number may be another's old one. */
export async function correctRecords(tx: Db, corrections: MigrationPlan['corrections']): Promise<void> {
  const from = corrections.map((correction) => correction.from);
  await tx.query({
    name: 'schema_migrations_set_aside',
    text: 'update schema_migrations set version = -version where version = any ($1::integer[])',
    values: [from],
  });
  await tx.query({
    name: 'schema_migrations_correct',
    text: `update schema_migrations s set version = c.version, name = c.name, checksum = c.checksum
      from unnest($1::integer[], $2::integer[], $3::text[], $4::text[]) as c (was, version, name, checksum)
      where s.version = -c.was`,
    values: [
      from,
      corrections.map(({ to }) => to.version),
      corrections.map(({ to }) => to.name),
      corrections.map(({ to }) => to.checksum),
    ],
  });
}

/**
 * The number up to which every migration is applied; 0 on a database that was never migrated. Not the highest one: a
 * database from before a renumbering has high numbers, and lacks what this release has under lower ones.
 */
export async function schemaVersion(db: Db): Promise<number> {
  try {
    const result = await db.query<{ version: number }>({
      name: 'schema_migrations_version',
      text: `select coalesce(max(version), 0)::integer as version
        from (select version, row_number() over (order by version) as place from schema_migrations) as applied
        where version = place`,
      values: [],
    });
    return result.rows[0]!.version;
  } catch (error) {
    if (sqlState(error) === UNDEFINED_TABLE) return 0;
    throw error;
  }
}
