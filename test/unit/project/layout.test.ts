import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

// How the folders of the service are kept readable: no folder needs a search, few files need a neighbour to make sense, and
// names have one style. SQL, and what reaches into V8 and drivers, stand where a reader looks for them.

const MOST_FILES = 19;
const MOST_HANDLERS = 24;
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
 * Text that begins like a statement of SQL. Words that begin sentences too count only when they stand alone (`begin`),
 * or with one name behind them (`listen relay_wake`).
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

/** Nodes of a source, as `name` sees each. */
function find(file: string, source: string, name: (node: ts.Node) => string | null): string[] {
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    const named = name(node);
    if (named !== null) found.push(named);
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true));
  return found;
}

/** Finds code that reaches behind types: casts by way of `unknown`, V8 and its settings, fields that begin with `_`. */
const reachesIn = (file: string, source: string) =>
  find(file, source, (node) => {
    if (ts.isAsExpression(node) && node.type.kind === ts.SyntaxKind.UnknownKeyword && ts.isAsExpression(node.parent)) {
      return 'as unknown as';
    }
    if (ts.isImportDeclaration(node) && /^'(node:)?(v8|vm|inspector)'$/.test(node.moduleSpecifier.getText())) {
      return node.moduleSpecifier.getText();
    }
    if (ts.isPropertyAssignment(node) && ts.isObjectLiteralExpression(node.initializer)) {
      return node.name.getText() === 'resourceLimits' ? 'resourceLimits' : null;
    }
    return ts.isPropertyAccessExpression(node) && node.name.text.startsWith('_') ? node.name.text : null;
  });

/** The beginnings of the statements in a source; a `${...}` is seen as `$`. Comments are no texts. */
const statementsIn = (file: string, source: string) =>
  find(file, source, (node) => {
    if (!ts.isStringLiteralLike(node) && !ts.isTemplateExpression(node)) return null;
    const parts = ts.isTemplateExpression(node)
      ? [node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)]
      : [node.text];
    const text = parts.join('$').trim();
    return STATEMENTS.some((pattern) => pattern.test(text)) ? text.slice(0, 40) : null;
  });

describe('the folders of the service', () => {
  test('hold few enough files to be read at a glance', () => {
    const sizes = new Map<string, number>();
    for (const file of lib) sizes.set(dirname(file), (sizes.get(dirname(file)) ?? 0) + 1);
    expect([...sizes].filter(([, size]) => size > MOST_FILES)).toEqual([]);
    expect(handlers.length).toBeLessThanOrEqual(MOST_HANDLERS);
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

test('keep what reaches into V8 and into drivers in lib/runtime', () => {
  const found = [...lib, ...handlers, ...sources('bin')]
    .filter((file) => !file.startsWith('lib/runtime/'))
    .flatMap((file) => reachesIn(file, read(file)).map((text) => `${file}: ${text}`));
  expect(found).toEqual([]);
});

test.each([
  'const socket = (client as unknown as { stream: Socket }).stream;',
  "import { setFlagsFromString } from 'node:v8';",
  'new Worker(entry, { resourceLimits: { maxOldGenerationSizeMb: 32 } });',
  'pool._clients.length;',
])('a reach into internals is found: %s', (source) => {
  expect(reachesIn('lib/worker/planted.ts', source)).toHaveLength(1);
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
