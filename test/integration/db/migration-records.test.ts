import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { startServer } from '../../../bin/serve.ts';
import { loadConfig } from '../../../lib/app/config.ts';
import { createLog } from '../../../lib/base/log.ts';
import { expectedVersion, isSchemaCurrent, migrate } from '../../../lib/db/migrate.ts';
import { schemaVersion } from '../../../lib/db/schema-migrations.sql.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

const log = createLog('silent');
const CLI = join(import.meta.dirname, '../../../bin/cli.ts');

let database: TestDatabase;
let home: string;
beforeEach(async () => {
  database = await createTestDatabase();
  home = await mkdtemp(join(tmpdir(), 'relay-records-'));
});
afterEach(async () => {
  await database.close();
  await rm(home, { recursive: true, force: true });
});

async function sql(text: string) {
  const name = createHash('md5').update(text).digest('hex');
  return (await database.db.query<Record<string, unknown>>({ name, text, values: [] })).rows;
}

const records = () => sql('select version, name, checksum, applied_at from schema_migrations order by version');

/** As a clone from before the renumbering left it: no checksums, and one number more from the ninth on. */
async function renumber(): Promise<void> {
  await sql('alter table schema_migrations drop column checksum');
  await sql('update schema_migrations set version = -version where version >= 9');
  await sql(`update schema_migrations set version = 1 - version,
    name = lpad((1 - version)::text, 4, '0') || substr(name, 5) where version < 0`);
}

describe('records of applied migrations', () => {
  test('get new numbers and their checksums once when four starters come at the same time, and nothing runs again', async () => {
    const before = await records();
    await renumber();
    // Not by its highest number: one below it is missing.
    expect(await schemaVersion(database.db)).toBe(8);
    expect(await isSchemaCurrent(database.db, await expectedVersion())).toBe(false);
    expect(await Promise.all([1, 2, 3, 4].map(() => migrate(database.dsn, log)))).toEqual([0, 0, 0, 0]);
    expect(await records()).toEqual(before);
    expect(await isSchemaCurrent(database.db, await expectedVersion())).toBe(true);
  });

  test('are not touched by a start that has nothing to do: it does not wait for a dump that reads them', async () => {
    await database.db.transaction(async (tx) => {
      await tx.query({ name: 'test_lock', text: 'lock table schema_migrations in access share mode', values: [] });
      expect(await migrate(database.dsn, log)).toBe(0);
    });
  });

  test('stay as they are when a migration fails', async () => {
    await sql('drop table schema_migrations');
    await writeFile(join(home, '0001_good.sql'), 'create table good (n integer);');
    await writeFile(join(home, '0002_bad.sql'), 'select 1 / 0;');
    await expect(migrate(database.dsn, log, home)).rejects.toThrow('migration 0002_bad.sql: division by zero');
    expect(await records()).toMatchObject([{ version: 1, name: '0001_good.sql' }]);
  });
});

describe('a migration that was edited after it was applied', () => {
  beforeEach(() => sql(`update schema_migrations set checksum = repeat('0', 64) where version = 5`));
  const sentence = /^migration 0005_limits\.sql was edited after this database had applied it: restore the file/;

  test('is named by relay-batch migrate', async () => {
    const child = spawn(process.execPath, [CLI, 'migrate'], {
      env: { PATH: process.env.PATH, ...database.postgresEnv },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    let errors = '';
    child.stderr.on('data', (chunk: Buffer) => (errors += chunk));
    expect(await once(child, 'close')).toEqual([1, null]);
    expect(errors).toMatch(sentence);
    expect(errors.trimEnd()).not.toContain('\n');
  });

  test('ends a start', async () => {
    const env = {
      ...database.postgresEnv,
      RELAY_DATA_DIR: join(home, 'data'),
      RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
      RELAY_PORT: '0',
      RELAY_CONTROL_PORT: 'off',
    };
    const server = await startServer(loadConfig(env), env, log);
    const failed = await server.app.ready.catch((error: unknown) => error);
    await server.stop();
    expect(failed).toMatchObject({ name: 'ConfigError', message: expect.stringMatching(sentence) });
  });
});

test('a gap in the numbers, and a name that is there twice, are refused before anything is applied', async () => {
  await writeFile(join(home, '0001_first.sql'), '');
  await writeFile(join(home, '0003_third.sql'), '');
  await expect(migrate(database.dsn, log, home)).rejects.toThrow('0003_third.sql leaves a gap: its number must be 2');
  await writeFile(join(home, '0002_first.sql'), '');
  await expect(expectedVersion(home)).rejects.toThrow('0001_first.sql and 0002_first.sql share a name');
});
