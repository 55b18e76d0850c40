import { expect, test } from 'vitest';
import { statementInput, table, value } from '../../../lib/db/statement-input.ts';

interface Input {
  id: string;
  people: { name: string | null; age: number }[];
  pets: { kind: string }[];
  factor: number;
}

const parts = statementInput({
  id: value('uuid', ({ id }: Input) => id),
  people: table(({ people }: Input) => people, {
    name: ['text', (person) => person.name],
    age: ['int', (person, _, { factor }) => person.age * factor],
    place: ['bigint', (_, index) => index],
    email: ['text', () => undefined],
  }),
  factor: value('float8', ({ factor }: Input) => factor),
  pets: table(({ pets }: Input) => pets, { kind: ['text', (pet) => pet.kind] }),
});

test('names stand for numbers that follow each other in the order of the definition', () => {
  expect(parts.sql).toEqual({
    id: '$1::uuid',
    people: 'unnest($2::text[], $3::int[], $4::bigint[], $5::text[]) as people(name, age, place, email)',
    factor: '$6::float8',
    pets: 'unnest($7::text[]) as pets(kind)',
  });
});

test('values have the places that the names stand for', () => {
  const people = [
    { name: 'a"b', age: 1 },
    { name: null, age: 2 },
  ];
  expect(parts.values({ id: 'x', people, pets: [{ kind: 'NULL' }], factor: 2.5 })).toEqual([
    'x',
    '{"a\\"b",NULL}',
    '{2.5,5}',
    '{0,1}',
    null,
    2.5,
    '{"NULL"}',
  ]);
});

test('a table without rows is all nulls, which unnest makes no row of', () => {
  expect(parts.values({ id: 'x', people: [], pets: [], factor: 1 })).toEqual(['x', null, null, null, null, 1, null]);
});
