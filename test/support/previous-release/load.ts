import { cp, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import pg from 'pg';
import manifest from './manifest.json' with { type: 'json' };

// A database and a payload directory as the previous release left them when it was killed in the middle of its work.
// `scripts/make-previous-release.ts` makes the files that stand here.

const FOLDER = import.meta.dirname;

/** How the previous release makes the table of its migrations. */
const SCHEMA_MIGRATIONS = `create table schema_migrations (
  version integer primary key,
  name text not null,
  applied_at timestamptz not null default clock_timestamp()
)`;

/** Where the fixture goes. */
export interface PreviousRelease {
  /** Direct DSN of a database that may be emptied. */
  dsn: string;
  /** A directory that does not exist yet. */
  payloadDir: string;
  upstreamUrl: string;
  /** Number of a migration by its name, where the database is to have another one than the files. */
  renumber?: (name: string, version: number) => number;
}

/**
 * Loads the fixture. All times are moved, as if the release had been killed a minute ago: leases have run out, and what
 * lives for hours or days is still alive.
 */
export async function loadPreviousRelease(options: PreviousRelease): Promise<typeof manifest> {
  await cp(join(FOLDER, 'payloads'), options.payloadDir, { recursive: true });
  const client = new pg.Client({ connectionString: options.dsn });
  await client.connect();
  try {
    await client.query('drop schema public cascade; create schema public');
    await client.query(SCHEMA_MIGRATIONS);
    for (const text of await migrationTexts()) await client.query(text);
    await client.query('begin');
    for (const { name, parent, bound } of manifest.partitions) {
      await client.query(`create table if not exists ${name} partition of ${parent} ${bound}`);
    }
    await loadRows(client, options.upstreamUrl);
    for (const { version, name } of (await client.query('select * from schema_migrations order by version desc'))
      .rows) {
      const other = options.renumber?.(name, version) ?? version;
      await client.query('update schema_migrations set version = $1, name = $2 where version = $3', [
        other,
        name.replace(/^\d+/, String(other).padStart(4, '0')),
        version,
      ]);
    }
    await client.query('commit');
  } finally {
    await client.end();
  }
  return manifest;
}

/** The previous release's own migrations, in order. */
async function migrationTexts(): Promise<string[]> {
  const folder = join(FOLDER, 'migrations');
  return Promise.all((await readdir(folder)).sort().map((name) => readFile(join(folder, name), 'utf8')));
}

async function loadRows(client: pg.Client, upstreamUrl: string): Promise<void> {
  const lines = (await readFile(join(FOLDER, 'data.jsonl'), 'utf8')).replaceAll(manifest.upstream, upstreamUrl);
  const tables = new Map<string, unknown[]>();
  for (const line of lines.trimEnd().split('\n')) {
    const { table, row } = JSON.parse(line) as { table: string; row: unknown };
    tables.set(table, [...(tables.get(table) ?? []), row]);
  }
  // Some migrations insert a first row.
  await client.query(`truncate ${[...tables.keys()].join(', ')} cascade`);
  for (const [table, rows] of tables) {
    const columns = await client.query<{ name: string; type: string }>(
      `select attname as name, atttypid::regtype::text as type from pg_attribute
        where attrelid = $1::regclass and attnum > 0 and not attisdropped`,
      [table],
    );
    const values = columns.rows.map(({ name, type }) => {
      if (type === 'timestamp with time zone') return `${name} + shift.by`;
      // Times of the rate limits are microseconds; 0 stands for none.
      if (name.endsWith('_us'))
        return `${name} + sign(${name})::bigint * (extract(epoch from shift.by) * 1000000)::bigint`;
      return name;
    });
    await client.query(
      `insert into ${table} (${columns.rows.map(({ name }) => name).join(', ')})
        select ${values.join(', ')} from jsonb_populate_recordset(null::${table}, $1::jsonb),
          (select clock_timestamp() - interval '1 minute' - $2::timestamptz as by) as shift`,
      [JSON.stringify(rows), manifest.dumpedAt],
    );
  }
}
