import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

// How the folders of the service are kept readable: no folder that needs a search, few files that need a neighbour to
// make sense, one style of names, and SQL only where a reader looks for it.

const MOST_FILES = 19;
const SHORT_LINES = 30;
const MOST_SHORT_SHARE = 0.15;

const sources = (folder: string) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.(ts|mjs)$/.test(name))
    .map((name) => join(folder, name));
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8');

const lib = sources('lib');
const handlers = sources('handlers');

/**
 * What begins like a statement of SQL. Words that begin sentences too count only when they stand alone (`begin`), or with one
 * name behind them (`listen relay_wake`).
 */
const STATEMENTS = [
  /^(?:select|values)\b(?! a | an | the )/i,
  /^(?:insert\s+into|delete\s+from|truncate(?:\s+table)?)\s+\S/i,
  /^update\s+\S+\s+(?:as\s+)?(?:\w+\s+)?set\b/i,
  /^with\s+(?:recursive\s+)?\w+\s*(?:\([^)]*\)\s*)?as\b/i,
  /^explain\s+(?:\(|analyze\b|select\b)/i,
  /^(?:create|alter|drop)\s+(?:\w+\s+)*?(?:table|index|database|type|schema|function|role)\s/i,
  /^set\s+(?:local|session|transaction|constraints)\s/i,
  /^(?:begin|commit|rollback|start\s+transaction)\s*;?\s*$/i,
  /^(?:un)?(?:listen|notify)\s+(?:"?\w+"?|\*|\$)\s*;?\s*$/i,
];

/** The beginnings of the statements in a source; a `${...}` is seen as `$`. Comments are no texts. */
function statementsIn(file: string, source: string): string[] {
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    const parts = ts.isStringLiteralLike(node)
      ? [node.text]
      : ts.isTemplateExpression(node)
        ? [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)]
        : [];
    const text = parts.join('$').trim();
    if (STATEMENTS.some((pattern) => pattern.test(text))) found.push(text.slice(0, 40));
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true));
  return found;
}

describe('the folders of the service', () => {
  test('hold few enough files to be read at a glance', () => {
    const sizes = new Map<string, number>();
    for (const file of lib) sizes.set(dirname(file), (sizes.get(dirname(file)) ?? 0) + 1);
    expect([...sizes].filter(([, size]) => size > MOST_FILES)).toEqual([]);
  });

  test('hold few files that are a page of their own for less than a page', () => {
    const short = lib.filter((file) => read(file).split('\n').length - 1 < SHORT_LINES);
    expect(short.length / lib.length, short.join(' ')).toBeLessThanOrEqual(MOST_SHORT_SHARE);
  });

  test('name files in one style', () => {
    const odd = [...lib, ...handlers].filter(
      (file) => !/^[a-z0-9]+(-[a-z0-9]+)*(\.sql)?\.(ts|mjs)$/.test(basename(file)),
    );
    expect(odd).toEqual([]);
  });

  test('hold SQL in files that are named .sql.ts alone', () => {
    const found = [...lib, ...handlers, ...sources('bin')]
      .filter((file) => !file.endsWith('.sql.ts'))
      .flatMap((file) => statementsIn(file, read(file)).map((text) => `${file}: ${text}`));
    expect(found).toEqual([]);
  });
});

describe('the search for SQL', () => {
  test.each([
    `const text = 'select 1 from batches';`,
    'const text = `\n  select *\n  from batches`;',
    `const text = 'insert into batches (id) values ($1)';`,
    'const text = `\n  update batches b set open_items = $' + '{n}`;',
    `const text = 'delete from batches';`,
    'const text = `with gone as (delete from batches returning id) select id from gone`;',
    `const text = 'explain (format json) select 1';`,
    `const text = 'create unique index concurrently x on y (z)';`,
    `const text = 'set local enable_seqscan = on';`,
    `client.query('begin');`,
    `client.query('ROLLBACK');`,
    `client.query('listen relay_wake');`,
    'client.query(`listen $' + '{channel}`);',
    `client.query('unlisten *');`,
  ])('finds %s', (source) => {
    expect(statementsIn('lib/worker/planted.ts', source)).toHaveLength(1);
  });

  test.each([
    `log.info('begin to read');`,
    `log.warn('listen connection lost, connecting again');`,
    `throw new Error('select a model');`,
    `const text = 'with care';`,
    `const text = 'update the catalogue';`,
    `const text = 'commit failed';`,
    '// select 1 from batches',
  ])('leaves prose alone: %s', (source) => {
    expect(statementsIn('lib/worker/planted.ts', source)).toEqual([]);
  });
});
