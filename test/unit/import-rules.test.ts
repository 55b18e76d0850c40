import { mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { cruise, type ICruiseOptions, type ICruiseResult, type IForbiddenRuleType } from 'dependency-cruiser';
import { afterAll, beforeAll, expect, test } from 'vitest';

interface Rules {
  forbidden: IForbiddenRuleType[];
  options: ICruiseOptions;
}
const CONFIG = new URL('../../.dependency-cruiser.mjs', import.meta.url).href;

// The rules are run over a small tree with one planted fault each: a rule whose pattern matches nothing any more would
// otherwise stay green for ever.
const TREE = {
  'lib/base/errors.ts': 'export const a = 1;',
  'lib/db/database.ts': `import { a } from '../errors.ts'; export const b = a;`,
  'lib/worker/claim.ts': `import { b } from '../store/db.ts'; export const c = b;`,
  'lib/model/batch.ts': 'export type State = 1;',
  'lib/batch/submit/items.sql.ts': `import type { State } from '../batch/batch.ts'; export type S = State;`,
};

const PLANTED: [fault: string, file: string, text: string, rule: string][] = [
  [
    'store imports worker',
    'lib/store/bad.ts',
    `import { c } from '../worker/claim.ts'; c;`,
    'upward from store, queue',
  ],
  [
    'store imports only a type of worker',
    'lib/store/bad.ts',
    `import type { c } from '../worker/claim.ts'; export type C = typeof c;`,
    'upward from store, queue',
  ],
  ['errors imports store', 'lib/base/errors.ts', `import { b } from './store/db.ts'; b;`, 'upward from config'],
  [
    'vocabulary imports a layer',
    'lib/model/batch.ts',
    `import { b } from '../store/db.ts'; b;`,
    'vocabulary imports only vocabulary',
  ],
  ['two files import each other', 'lib/worker/claim.ts', `import './run.ts'; export const c = 1;`, 'cycle'],
  ['a new folder without a layer', 'lib/misc/bad.ts', `import '../errors.ts';`, 'every folder of lib has a layer'],
  [
    'a worker starts Postgres',
    'lib/worker/bad.ts',
    `import '../postgres/embedded.ts';`,
    'embedded Postgres is for the composition root',
  ],
  [
    'the service imports a test',
    'lib/worker/bad.ts',
    `import '../../test/fake.ts';`,
    'the service does not import its surroundings',
  ],
  ['a missing file', 'lib/worker/bad.ts', `import './missing.ts';`, 'unresolvable'],
];

let home: string;
let rules: Rules;
beforeAll(async () => {
  rules = ((await import(CONFIG)) as { default: Rules }).default;
  home = await realpath(await mkdtemp(join(tmpdir(), 'relay-imports-')));
});
afterAll(() => rm(home, { recursive: true, force: true }));

async function broken(name: string, extra: Record<string, string>): Promise<string[]> {
  const root = join(home, name.replaceAll(' ', '-'));
  const files = {
    ...TREE,
    'lib/worker/item/run.ts': `import { c } from './claim.ts'; c;`,
    'lib/postgres/embedded.ts': 'export const p = 1;',
    'test/fake.ts': 'export const f = 1;',
    'tsconfig.json': '{"compilerOptions":{"module":"nodenext","allowImportingTsExtensions":true}}',
    ...extra,
  };
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await writeFile(join(root, path), text);
  }
  await symlink(join(import.meta.dirname, '../../node_modules'), join(root, 'node_modules'));
  const ruleSet = { forbidden: rules.forbidden };
  const { output } = await cruise(['lib', 'test'], { ...rules.options, baseDir: root, ruleSet, validate: true });
  return (output as ICruiseResult).summary.violations.map((violation) => violation.rule.name);
}

test('a tree that keeps the direction breaks no rule', async () => {
  expect(await broken('clean', {})).toEqual([]);
});

test.each(PLANTED)('the import rules fire when %s', async (fault, file, text, rule) => {
  expect(await broken(fault, { [file]: text })).toContain(rule);
});
