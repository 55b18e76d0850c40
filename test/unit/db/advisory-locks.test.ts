import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ADVISORY_LOCKS, lockForTransaction, lockName, tryLockForSession } from '../../../lib/db/advisory-locks.sql.ts';
import type { Db, Statement } from '../../../lib/db/database.ts';
import { ROOT } from '../../support/root.ts';

const LIB = join(ROOT, 'lib');

test('the numbers of the locks differ, and are those of every release', () => {
  expect(new Set(Object.values(ADVISORY_LOCKS)).size).toBe(Object.keys(ADVISORY_LOCKS).length);
  // A changed number would let two releases work at the same time that must not. A new lock is added here.
  expect(ADVISORY_LOCKS).toEqual({
    catalog: '7235601',
    masterKey: '7235602',
    migrations: '7309034661',
    dataDirOwner: '7309034662',
    signingKeys: '7309034663',
    validationTurns: '7309034664',
  });
});

test('a lock is taken by its number, or by its name', async () => {
  const sent: Statement[] = [];
  const rows = [{ locked: true }];
  const db = {
    query: async (statement: Statement) => {
      sent.push(statement);
      return { rows };
    },
  } as unknown as Db;
  await lockForTransaction(db, 'signingKeys');
  await lockName(db, 'submit me');
  expect(await tryLockForSession(db, ADVISORY_LOCKS.dataDirOwner)).toBe(true);
  expect(sent.map(({ values }) => values)).toEqual([['7309034663'], ['submit me'], ['7309034662']]);
});

test('no other file of the service takes an advisory lock by itself', () => {
  const takers = readdirSync(LIB, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.endsWith('.ts') && /pg_(try_)?advisory/.test(readFileSync(join(LIB, name), 'utf8')),
  );
  expect(takers).toEqual(['db/advisory-locks.sql.ts']);
});
