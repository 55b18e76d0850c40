import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { expectedVersion, isSchemaCurrent, migrate } from '../../../lib/db/migrate.ts';
import { schemaVersion } from '../../../lib/db/schema-migrations.sql.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

const log = createLog('silent');

async function folderOf(files: Record<string, string>): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'relay-migrations-'));
  for (const [name, text] of Object.entries(files)) await writeFile(join(folder, name), text);
  return folder;
}

describe('migrate', () => {
  let test_: TestDatabase;
  let folder: string;
  const run = (text: string) => test_.sql(text);

  beforeAll(async () => {
    test_ = await createTestDatabase();
    await run('drop table schema_migrations');
    folder = await folderOf({
      '0001_first.sql': 'create table first (n integer); insert into first values (1);',
      '0002_second.sql': 'insert into first values (2);',
    });
  });
  afterAll(async () => {
    await test_.close();
    await rm(folder, { recursive: true });
  });

  test('counts a database that was never migrated as version 0 and outdated', async () => {
    expect(await schemaVersion(test_.db)).toBe(0);
    expect(await isSchemaCurrent(test_.db, 1)).toBe(false);
  });

  test('applies each migration once when four starters come at the same time', async () => {
    const applied = await Promise.all([1, 2, 3, 4].map(() => migrate(test_.dsn, log, folder)));
    expect(applied.reduce((a, b) => a + b)).toBe(2);
    expect(await run('select n from first order by n')).toEqual([{ n: 1 }, { n: 2 }]);
    expect(await schemaVersion(test_.db)).toBe(2);
    expect(await isSchemaCurrent(test_.db, await expectedVersion(folder))).toBe(true);
  });

  test('names a failing migration, leaves nothing of it behind and keeps those before it', async () => {
    await writeFile(join(folder, '0003_good.sql'), 'create table good (n integer);');
    await writeFile(join(folder, '0004_bad.sql'), 'create table half (n integer); select 1 / 0;');
    await expect(migrate(test_.dsn, log, folder)).rejects.toThrow('migration 0004_bad.sql: division by zero');
    expect(await schemaVersion(test_.db)).toBe(3);
    expect(await run(`select to_regclass('good')::text as good, to_regclass('half')::text as half`)).toEqual([
      { good: 'good', half: null },
    ]);
  });

  test('leaves a database alone that a newer release migrated', async () => {
    // Run again, it would fail: the table is there.
    const older = await folderOf({
      '0001_first.sql': 'create table first (n integer); insert into first values (1);',
    });
    expect(await migrate(test_.dsn, log, older)).toBe(0);
    expect(await isSchemaCurrent(test_.db, await expectedVersion(older))).toBe(true);
    await rm(older, { recursive: true });
  });

  test('refuses two migrations of one number, and a name without one', async () => {
    const twice = await folderOf({ '0001_a.sql': '', '0001_b.sql': '' });
    await expect(migrate(test_.dsn, log, twice)).rejects.toThrow('0001_a.sql and 0001_b.sql share a number');
    const odd = await folderOf({ 'first.sql': '' });
    await expect(expectedVersion(odd)).rejects.toThrow('first.sql is no migration name');
    await Promise.all([twice, odd].map((path) => rm(path, { recursive: true })));
  });
});

test('the template has every migration of this release', async () => {
  const fresh = await createTestDatabase();
  expect(await schemaVersion(fresh.db)).toBe(await expectedVersion());
  await fresh.close();
});
