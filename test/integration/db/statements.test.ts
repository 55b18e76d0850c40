import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import {
  describeStatement,
  disagreements,
  type FoundStatement,
  KIND_OF_TYPE,
  readStatements,
} from '../../support/statements.ts';

// Compares every statement of the service with the schema that the migrations make: Postgres parses it, it returns the
// columns of its row type, and it takes as many parameters as the call passes.

let database: TestDatabase;
let client: pg.Client;
let statements: FoundStatement[];

beforeAll(async () => {
  database = await createTestDatabase();
  client = new pg.Client({ connectionString: database.dsn });
  await client.connect();
  statements = readStatements();
});
afterAll(async () => {
  await client.end();
  await database.close();
});

test('every statement agrees with the schema and with its row type', async () => {
  const faults: string[] = [];
  for (const statement of statements) {
    const { at, name, text } = statement;
    try {
      const described = await describeStatement(client, text);
      faults.push(...disagreements(statement, described).map((fault) => `${at}: ${name} ${fault}`));
    } catch (error) {
      faults.push(`${at}: ${name}: ${(error as Error).message}`);
    }
  }
  expect(faults).toEqual([]);
  expect(statements.length).toBeGreaterThan(110);
});

test('a name belongs to one text: a connection prepares it once', () => {
  const texts = new Map<string, string>();
  const clashes = statements.filter(({ name, text }) => {
    const known = texts.get(name);
    texts.set(name, text);
    return known !== undefined && known !== text;
  });
  expect(clashes.map(({ at, name }) => `${at}: ${name}`)).toEqual([]);
});

describe('the comparison', () => {
  const statement = (more: Partial<FoundStatement>): FoundStatement => ({
    at: 'x:1',
    name: 'x',
    text: '',
    parameters: null,
    row: null,
    ...more,
  });

  test.each([
    ['select 1 as a', { a: ['string'] }, ['returns a as int4, which is number; the row type says string']],
    ['select id as a from batches', { a: ['number', 'string'] }, [/^returns a as uuid, which is string/]],
    ['select state as a from batch_items', { a: ['number'] }, [/^returns a as enum/]],
    ['select 1 as a, 2 as b', { a: ['number'] }, ['returns b, which the row type lacks']],
    ['select 1 as a', { a: ['number'], b: ['number'] }, ['does not return b']],
    ['select 1 as a, 2 as a', { a: ['number'] }, ['returns two columns of one name']],
    [`select '1'::money as a`, { a: ['string'] }, ['returns a as money, which no rule maps']],
    ['select metadata as a from catalog_objects', { a: ['string'] }, [/^returns a as jsonb/]],
    ['delete from batches', { a: ['number'] }, ['does not return a']],
    ['select metadata as a, now() as b from catalog_objects', { a: ['object'], b: ['Date'] }, []],
  ] as const)('of %s with %o', async (text, row, faults) => {
    const kinds = Object.fromEntries(Object.entries(row).map(([name, list]) => [name, [...list]]));
    const found = disagreements(statement({ text, row: kinds }), await describeStatement(client, text));
    expect(found).toEqual(faults.map((fault) => (typeof fault === 'string' ? fault : expect.stringMatching(fault))));
  });

  test('counts parameters', async () => {
    const text = 'select $1::int as a, $2::int as b';
    expect(disagreements(statement({ text, parameters: 3 }), await describeStatement(client, text))).toEqual([
      'passes 3 values to 2 parameters',
    ]);
  });

  test('a statement that Postgres does not take fails, and the next one does not', async () => {
    await expect(describeStatement(client, 'select missing from batches')).rejects.toThrow('"missing" does not exist');
    expect((await describeStatement(client, 'select 1 as a')).columns).toEqual([{ name: 'a', type: 'int4' }]);
  });
});

test('the driver makes of each type what the table says', async () => {
  const literals: Record<string, string> = {
    int2: '1::int2',
    int4: '1',
    int8: '9007199254740991::int8',
    float8: '1.5::float8',
    bool: 'true',
    text: `'x'::text`,
    uuid: 'gen_random_uuid()',
    name: `'x'::name`,
    enum: `'available'::item_state`,
    bytea: `'\\x01'::bytea`,
    timestamptz: 'now()',
    json: `'{}'::json`,
    jsonb: `'{}'::jsonb`,
    _int4: 'array[1]',
    _float8: 'array[1.5::float8]',
    _text: `array['x']`,
  };
  const kinds: Record<string, string> = {};
  for (const [type, literal] of Object.entries(literals)) {
    const text = `select ${literal} as value`;
    expect((await describeStatement(client, text)).columns[0]!.type).toBe(type);
    const { rows } = await database.db.query<{ value: unknown }>({ name: `literal_${type}`, text, values: [] });
    kinds[type] = kindOf(rows[0]!.value);
  }
  expect(kinds).toEqual(KIND_OF_TYPE);
});

function kindOf(value: unknown): string {
  if (Array.isArray(value)) return `${kindOf(value[0])}[]`;
  if (Buffer.isBuffer(value)) return 'Buffer';
  return value instanceof Date ? 'Date' : typeof value;
}
