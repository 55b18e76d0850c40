import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { int4, plainArray, sparseArray, sparseTextArray, textArray } from '../../../lib/db/arrays.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

/** Returns the elements that Postgres reads from an array literal, as text. */
async function read(type: string, literal: string | null): Promise<(string | null)[]> {
  const text = `select array(select x::text from unnest($1::text::${type}[]) with ordinality u(x, i) order by i) as all`;
  const { rows } = await database.db.query<{ all: (string | null)[] }>({ name: '', text, values: [literal] });
  return rows[0]!.all;
}

test('any text without NUL comes back as it was, nulls and empty ones too', async () => {
  const some = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.constantFrom('', 'null', 'NULL', '"', '\\', '\\"', '{}', ',', ' a ', "'", '\n', '\t', '\u2028', '$1', '😀'),
    fc.constant(null),
  );
  await fc.assert(
    fc.asyncProperty(fc.array(some, { maxLength: 20 }), async (values) => {
      const clean = values.map((value) => value?.replaceAll('\u0000', '') ?? null);
      expect(await read('text', textArray(clean))).toEqual(clean);
    }),
    { numRuns: 60 },
  );
});

test('numbers and bigints come back as they were, nulls too', async () => {
  const some = fc.oneof(fc.maxSafeInteger(), fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), fc.constant(null));
  await fc.assert(
    fc.asyncProperty(fc.array(some, { maxLength: 20 }), async (values) => {
      expect(await read('bigint', plainArray(values))).toEqual(values.map((value) => value?.toString() ?? null));
    }),
    { numRuns: 40 },
  );
});

test('a column of nulls only is not sent', () => {
  expect([sparseArray([null, null]), sparseTextArray([null]), sparseArray([])]).toEqual([null, null, null]);
  expect([sparseArray([null, 1]), sparseTextArray(['a', null])]).toEqual(['{NULL,1}', '{"a",NULL}']);
});

test('a number is brought into the range of an int4 column', () => {
  expect([1.4, -1.6, 1e12, -1e12].map(int4)).toEqual([1, -2, 2_147_483_647, -2_147_483_648]);
});
