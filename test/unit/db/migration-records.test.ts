import { describe, expect, test } from 'vitest';
import { ConfigError } from '../../../lib/base/errors.ts';
import { checksumOf, type Migration, type MigrationRecord, planMigrations } from '../../../lib/db/migration-records.ts';

function file(version: number, subject: string, text = subject): Migration {
  return { version, name: `000${version}_${subject}.sql`, text, checksum: checksumOf(text) };
}

/** A record of `file`, as a release with checksums, or one before them, writes it. */
function record({ version, name, checksum }: Migration, checksums = true): MigrationRecord {
  return { version, name, checksum: checksums ? checksum : null };
}

/** The plan as numbers and names. */
function plan(records: MigrationRecord[], files: Migration[]) {
  const { corrections, missing } = planMigrations(records, files);
  return { corrected: corrections.map(({ from, to }) => [from, to.name]), missing: missing.map(({ name }) => name) };
}

const [a, b, c] = [file(1, 'a'), file(2, 'b'), file(3, 'c')];

describe('the checksum of a migration', () => {
  test('changes with a statement, and with white space inside of a line', () => {
    expect(checksumOf('select 1;')).not.toBe(checksumOf('select 2;'));
    expect(checksumOf("select ' a';")).not.toBe(checksumOf("select '  a';"));
    expect(checksumOf('select 1;\n  select 2;')).not.toBe(checksumOf('select 1; select 2;'));
  });

  test('does not change with comments on lines of their own, blank lines and line ends', () => {
    const text = 'create table t (n integer);\ncreate index t_n on t (n);';
    expect(checksumOf(`-- Why.\n\n${text.replace('\n', '  \r\n  -- more\r\n')}\r\n`)).toBe(checksumOf(text));
  });
});

describe('a plan', () => {
  test('runs what is not recorded, in order, and leaves alone what is', () => {
    expect(plan([], [a, b, c])).toEqual({ corrected: [], missing: [a.name, b.name, c.name] });
    expect(plan([record(a), record(b)], [a, b, c])).toEqual({ corrected: [], missing: [c.name] });
    expect(plan([record(a), record(c)], [a, b, c])).toEqual({ corrected: [], missing: [b.name] });
  });

  test('fills in the checksums of records that have none', () => {
    expect(plan([record(a, false), record(b)], [a, b])).toEqual({ corrected: [[1, a.name]], missing: [] });
  });

  test('knows a renumbered migration by its name, with a checksum and without', () => {
    for (const checksums of [true, false]) {
      const records = [record(a), record(file(3, 'b'), checksums), record(file(4, 'c'), checksums)];
      expect(plan(records, [a, b, c])).toEqual({
        corrected: [
          [3, b.name],
          [4, c.name],
        ],
        missing: [],
      });
    }
  });

  test('knows a migration that has another name now by its content', () => {
    const renamed = file(2, 'better', 'b');
    expect(plan([record(a), record(b)], [a, renamed])).toEqual({ corrected: [[2, renamed.name]], missing: [] });
    const moved = file(3, 'better', 'b');
    expect(plan([record(a), record(b)], [a, file(2, 'new'), moved])).toEqual({
      corrected: [[2, moved.name]],
      missing: ['0002_new.sql'],
    });
  });

  test('tells two migrations with the same content apart by their names', () => {
    const [x, y] = [file(1, 'x', 'select 1'), file(2, 'y', 'select 1')];
    expect(plan([record(x)], [x, y])).toEqual({ corrected: [], missing: [y.name] });
    expect(plan([record(y)], [x, y])).toEqual({ corrected: [], missing: [x.name] });
  });

  test('leaves records of a newer release alone', () => {
    expect(plan([record(a), record(b), record(c)], [a])).toEqual({ corrected: [], missing: [] });
  });

  test('is refused with the name of a migration that was edited after it was applied', () => {
    const edited = file(2, 'b', 'another statement');
    const refused = () => planMigrations([record(a), record(b)], [a, edited]);
    expect(refused).toThrow(ConfigError);
    expect(refused).toThrow(/^migration 0002_b\.sql was edited after this database had applied it/);
    // Renumbered as well: still the same file.
    expect(() => planMigrations([record(a), record(file(3, 'b'))], [a, edited])).toThrow('0002_b.sql was edited');
    // Without a checksum nobody can know.
    expect(plan([record(a), record(b, false)], [a, edited])).toEqual({ corrected: [[2, b.name]], missing: [] });
  });

  test('is refused where the database has used a number for something else', () => {
    for (const checksums of [true, false]) {
      const records = [record(a), record(file(2, 'stranger'), checksums)];
      expect(() => planMigrations(records, [a, b])).toThrow(
        /^migration 0002_b\.sql cannot be applied: this database has applied 0002_stranger\.sql under its number/,
      );
      expect(() => planMigrations([...records, record(file(3, 'b'))], [a, b])).toThrow('0002_stranger.sql');
    }
  });
});
