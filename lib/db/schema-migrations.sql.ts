import type { Db } from './database.ts';
import { sqlState, UNDEFINED_TABLE } from './errors.ts';

/** Makes the table of applied migrations; call it under the lock, because two `if not exists` at once can collide. */
export async function createMigrationsTable(tx: Db): Promise<void> {
  await tx.query({
    name: 'schema_migrations_create',
    text: `create table if not exists schema_migrations (
      version integer primary key,
      name text not null,
      applied_at timestamptz not null default clock_timestamp()
    )`,
    values: [],
  });
}

/** Versions that are applied, in no order. Throws 42P01 on a database that was never migrated. */
export async function appliedMigrations(db: Db): Promise<Set<number>> {
  const result = await db.query<{ version: number }>({
    name: 'schema_migrations_applied',
    text: 'select version from schema_migrations',
    values: [],
  });
  return new Set(result.rows.map((row) => row.version));
}

/** Records one migration as applied. A second record of a version violates the primary key. */
export async function recordMigration(tx: Db, version: number, name: string): Promise<void> {
  await tx.query({
    name: 'schema_migrations_record',
    text: 'insert into schema_migrations (version, name) values ($1::integer, $2::text)',
    values: [version, name],
  });
}

/** Highest applied version; 0 on a database that was never migrated. */
export async function schemaVersion(db: Db): Promise<number> {
  try {
    const result = await db.query<{ version: number }>({
      name: 'schema_migrations_version',
      text: 'select coalesce(max(version), 0)::integer as version from schema_migrations',
      values: [],
    });
    return result.rows[0]!.version;
  } catch (error) {
    if (sqlState(error) === UNDEFINED_TABLE) return 0;
    throw error;
  }
}
