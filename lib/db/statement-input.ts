import { sparseArray, sparseTextArray } from './arrays.ts';

/**
 * Parameters with names, for a statement that has many. One definition makes the number of a parameter, its type, the
 * column it becomes, and the value that is sent for it. None of the four can be moved without the others. The texts are made once, when the module is loaded.
 */
export interface StatementInput<Input, Name extends string> {
  /** How the statement writes each: `$1::uuid`, or `unnest($3::uuid[], $4::int[]) as items(batch_id, idx)`. */
  sql: Readonly<Record<Name, string>>;
  /** The parameters, in the order of their numbers. */
  values(input: Input): unknown[];
}

/** One parameter, or a table of them: numbered from `first`. */
export interface InputPart<Input> {
  count: number;
  write(name: string, first: number): string;
  values(input: Input): unknown[];
}

type Cell = string | number | bigint | null;

/** Type of a column, and what a row has there; `index` is the row's place in the table. */
export type InputColumn<Input, Row> = readonly [
  type: string,
  of: (row: Row, index: number, input: Input) => Cell | undefined,
];

/** A parameter that is sent as it is. */
export function value<Input>(type: string, of: (input: Input) => unknown): InputPart<Input> {
  return { count: 1, write: (_, first) => `$${first}::${type}`, values: (input) => [of(input)] };
}

/**
 * Rows by column: one array each, because an array costs Postgres and the driver far less than a parameter a cell. A
 * column without any value is sent as null, which unnest pads.
 */
export function table<Input, Row>(
  rowsOf: (input: Input) => readonly Row[],
  columns: Readonly<Record<string, InputColumn<Input, Row>>>,
): InputPart<Input> {
  const entries = Object.entries(columns);
  return {
    count: entries.length,
    write(name, first) {
      const arrays = entries.map(([, [type]], i) => `$${first + i}::${type}[]`);
      return `unnest(${arrays.join(', ')}) as ${name}(${Object.keys(columns).join(', ')})`;
    },
    values(input) {
      const rows = rowsOf(input);
      return entries.map(([, [type, of]]) => {
        const cells = rows.map((row, index) => of(row, index, input) ?? null);
        return type === 'text' ? sparseTextArray(cells as (string | null)[]) : sparseArray(cells);
      });
    },
  };
}

/** Numbers the parts in the order of their definition, from $1. */
export function statementInput<Input, Name extends string>(
  parts: Readonly<Record<Name, InputPart<Input>>>,
): StatementInput<Input, Name> {
  const sql = {} as Record<Name, string>;
  let next = 1;
  for (const [name, part] of Object.entries(parts) as [Name, InputPart<Input>][]) {
    sql[name] = part.write(name, next);
    next += part.count;
  }
  const list = Object.values(parts) as InputPart<Input>[];
  return { sql, values: (input) => list.flatMap((part) => part.values(input)) };
}
