import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

// Behind a transaction-mode pooler the next statement of a client may run on another server connection, and what it left
// on the first is another client's to find. So no statement may leave anything behind its transaction, except on the
// connections below, which are direct by their configuration (RELAY_PG_DIRECT_DSN, or the embedded Postgres).

/** A statement begins a text, or follows a semicolon or a word that opens a block of PL/pgSQL. */
const START = String.raw`(?:^|;|\bbegin\b|\bthen\b|\belse\b|\bloop\b)\s*`;
const sql = (text: string) => new RegExp(text, 'i');

const RULES: readonly [rule: string, pattern: RegExp][] = [
  [
    'setting',
    sql(String.raw`${START}set\s+(?!local\b|transaction\b|constraints\b)(?:session\s+)?[\w."]+\s*(?:=|\bto\b)`),
  ],
  [
    'setting',
    sql(String.raw`${START}set\s+(?:session\s+characteristics|session\s+authorization|role|time\s+zone|names)\b`),
  ],
  ['setting', sql(String.raw`\bset_config\s*\((?![^()]*,\s*true\s*\))`)],
  ['setting', sql(String.raw`${START}(?:reset\s+\w+|discard\s+(?:all|plans|sequences|temp|temporary))\b`)],
  ['session lock', sql(String.raw`\bpg_(?:try_)?advisory_(?:lock|unlock)(?:_shared|_all)?\b`)],
  ['temporary table', sql(String.raw`\bcreate\s+(?:global\s+|local\s+|or\s+replace\s+)*temp(?:orary)?\b|\bpg_temp\b`)],
  ['temporary table', sql(String.raw`\binto\s+temp(?:orary)?\s`)],
  // One name and the end: with more words behind it is prose, as of a log.
  ['listen', sql(String.raw`${START}(?:un)?listen\s+["\w$*]+\s*(?:;|$)`)],
  ['prepared statement', sql(String.raw`${START}(?:prepare\s+[\w"$]+\s*(?:\(|as\b)|deallocate\s)`)],
  ['held cursor', sql(String.raw`\bcursor\s+with\s+hold\b`)],
  ['loaded library', sql(String.raw`${START}load\s+'`)],
  // An option in a connection's first message is a setting too; a pooler refuses it.
  ['startup option', /^-c\s|\s-c\s+\w+=/],
];

/** Options of pg that it sends in the first message, or as a SET. */
const STARTUP_OPTIONS = new Set([
  'statement_timeout',
  'lock_timeout',
  'idle_in_transaction_session_timeout',
  'replication',
]);

/** Each use of session state, and each connection of its own, that is meant: file and rule. */
const DIRECT = [
  'lib/db/advisory-locks.sql.ts: session lock',
  'lib/db/database.ts: connection',
  'lib/db/database.ts: startup option', // not sent where statements are not prepared
  'lib/db/instance-lock.ts: connection',
  'lib/db/instance-lock.ts: session lock',
  'lib/postgres/owner.sql.ts: session lock',
  'lib/postgres/owner.ts: connection',
  'lib/queue/postgres.sql.ts: listen',
  'lib/queue/postgres.ts: connection',
];

function rulesBroken(text: string): string[] {
  return RULES.filter(([, pattern]) => pattern.test(text)).map(([rule]) => rule);
}

/** Finds the rules that the texts of a source break, never its comments. A `${...}` inside of a text is seen as `$`. */
function findIn(file: string, source: string): string[] {
  if (file.endsWith('.sql')) return rulesBroken(source.replace(/--.*$|\/\*[\s\S]*?\*\//gm, ''));
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isStringLiteralLike(node)) found.push(...rulesBroken(node.text));
    if (ts.isTemplateExpression(node)) {
      found.push(...rulesBroken([node.head.text, ...node.templateSpans.map(({ literal }) => literal.text)].join('$')));
    }
    if (ts.isPropertyAssignment(node) && STARTUP_OPTIONS.has(node.name.getText())) found.push('startup option');
    if (ts.isCallExpression(node) && node.expression.getText() === 'tryLockForSession') found.push('session lock');
    if (ts.isNewExpression(node) && /^pg\.(?:Client|Pool)$/.test(node.expression.getText())) found.push('connection');
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile(file, source, ts.ScriptTarget.Latest, true));
  return found;
}

async function sources(): Promise<string[]> {
  const lists = await Promise.all(
    ['lib', 'handlers', 'migrations'].map(async (folder) =>
      (await readdir(join(ROOT, folder), { recursive: true })).map((name) => join(folder, name)),
    ),
  );
  return lists.flat().filter((name) => /\.(?:ts|sql)$/.test(name));
}

test('keeps state of a session to the connections that are direct', async () => {
  const files = await sources();
  expect(files.length).toBeGreaterThan(150);
  const found = await Promise.all(
    files.map(async (file) => findIn(file, await readFile(join(ROOT, file), 'utf8')).map((rule) => `${file}: ${rule}`)),
  );
  expect([...new Set(found.flat())].sort()).toEqual(DIRECT);
});

describe('the lint', () => {
  test.each([
    ['setting', `const text = 'set work_mem = 1';`],
    ['setting', `const text = 'set session statement_timeout to 5';`],
    ['setting', 'const text = `begin; SET search_path = $1`;'],
    ['setting', `const text = "set time zone 'UTC'";`],
    ['setting', `const text = "select set_config('jit', 'off', false)";`],
    ['setting', `const text = "select set_config('jit', 'off', true), set_config('a.b', $1::text, false)";`],
    ['setting', `const text = 'reset all';`],
    ['setting', `const text = 'discard all';`],
    ['session lock', `const text = 'select pg_advisory_lock($1::bigint)';`],
    ['session lock', `const text = 'select pg_try_advisory_lock_shared($1::bigint)';`],
    ['temporary table', `const text = 'create temp table x (a int)';`],
    ['temporary table', `const text = 'create temporary view x as select 1';`],
    ['temporary table', `const text = 'select 1 into temp x';`],
    ['listen', `const text = 'LISTEN relay_wake';`],
    ['listen', `const text = \`listen $\{name}\`;`],
    ['listen', `const text = 'unlisten *';`],
    ['prepared statement', `const text = 'prepare p (int) as select $1';`],
    ['prepared statement', `const text = 'deallocate all';`],
    ['held cursor', `const text = 'declare c cursor with hold for select 1';`],
    ['loaded library', `const text = "load 'auto_explain'";`],
    ['startup option', `const pool = { options: '-c jit=off' };`],
    ['startup option', `const pool = { statement_timeout: 5 };`],
    ['session lock', 'const held = await tryLockForSession(db, key);'],
    ['connection', 'const client = new pg.Client({});'],
  ])('finds a planted %s in %s', (rule, source) => {
    expect(findIn('lib/worker/planted.ts', source)).toEqual([rule]);
  });

  test('finds one in a function of a migration', () => {
    const body = 'begin\n  perform set_config($1, $2, false);\n  set jit = off;\nend';
    expect(findIn('migrations/9999_x.sql', body)).toEqual(['setting', 'setting']);
  });

  test.each([
    `const text = 'set local work_mem = 1';`,
    `const text = 'set transaction isolation level repeatable read, read only';`,
    `const text = "select set_config('jit', 'off', true)";`,
    `const text = 'select pg_advisory_xact_lock($1::bigint)';`,
    `const text = 'update batches set state = 1 where id = $1::uuid';`,
    `const text = "select pg_notify('relay_wake', $1::text)";`,
    `log.warn('listen connection lost, connecting again');`,
    `// set work_mem = 1; listen x`,
  ])('has nothing against %s', (source) => {
    expect(findIn('lib/worker/planted.ts', source)).toEqual([]);
  });
});
