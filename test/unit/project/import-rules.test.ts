import { mkdir, mkdtemp, realpath, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { cruise, type ICruiseOptions, type ICruiseResult, type IForbiddenRuleType } from 'dependency-cruiser';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

interface Config {
  LAYERS: { name: string; folders: string[] }[];
  default: { forbidden: IForbiddenRuleType[]; options: ICruiseOptions };
}
const { LAYERS, default: rules } = (await import(
  new URL('../../../.dependency-cruiser.mjs', import.meta.url).href
)) as Config;

// The rules are run over a small tree with one planted fault each: a rule whose pattern matches nothing any more would
// otherwise stay green for ever.
const TREE = {
  'lib/base/errors.ts': 'export const a = 1;',
  'lib/model/batch.ts': 'export type State = 1;',
  'lib/db/database.ts': `import { a } from '../base/errors.ts'; export const b = a;`,
  'lib/batch/record.ts': `import type { State } from '../model/batch.ts'; export type S = State;`,
  'lib/worker/claim.ts': `import { b } from '../db/database.ts'; export const c = b;`,
  'lib/worker/item/run.ts': `import { c } from '../claim.ts'; c;`,
  'lib/postgres/embedded.ts': 'export const p = 1;',
  'test/fake.ts': 'export const f = 1;',
};

type Planted = [fault: string, files: Record<string, string>, rule: string];

/** For each layer but the highest: a file of each of its folders that imports one of the next layer. */
const UPWARD: Planted[] = LAYERS.slice(0, -1).flatMap((layer, i) =>
  layer.folders.map((folder): Planted => {
    const above = `${LAYERS[i + 1]!.folders[0]}/above.ts`;
    const up = '../'.repeat(folder.split('/').length);
    const files = { [`${folder}/bad.ts`]: `import '${up}${above}';`, [above]: 'export const x = 1;' };
    return [`${folder} imports ${above}`, files, `upward from ${layer.name}`];
  }),
);

const PLANTED: Planted[] = [
  ...UPWARD,
  [
    'db imports only a type of worker',
    { 'lib/db/bad.ts': `import type { c } from '../worker/claim.ts'; export type C = typeof c;` },
    'upward from db',
  ],
  ['two files import each other', { 'lib/worker/claim.ts': `import './item/run.ts'; export const c = 1;` }, 'cycle'],
  ['a new folder has no layer', { 'lib/misc/bad.ts': `import '../base/errors.ts';` }, 'every file of lib has a layer'],
  ['a file of lib has no folder', { 'lib/bad.ts': `import './base/errors.ts';` }, 'every file of lib has a layer'],
  [
    'a worker starts Postgres',
    { 'lib/worker/bad.ts': `import '../postgres/embedded.ts';` },
    'embedded Postgres is for the composition root',
  ],
  [
    'the service imports a test',
    { 'lib/worker/bad.ts': `import '../../test/fake.ts';` },
    'the service does not import its surroundings',
  ],
  [
    'the service imports a test tool',
    { 'lib/worker/bad.ts': `import { test } from 'vitest'; test;` },
    'test tools in the service',
  ],
  ['a file is missing', { 'lib/worker/bad.ts': `import './missing.ts';` }, 'unresolvable'],
];

let home: string;
beforeAll(async () => {
  home = await realpath(await mkdtemp(join(tmpdir(), 'relay-imports-')));
});
afterAll(() => rm(home, { recursive: true, force: true }));

async function broken(name: string, extra: Record<string, string>): Promise<string[]> {
  const root = join(home, name.replaceAll(/\W/g, '-'));
  const files = {
    ...TREE,
    'package.json': '{"type":"module","devDependencies":{"vitest":"*"}}',
    'tsconfig.json': '{"compilerOptions":{"module":"nodenext","allowImportingTsExtensions":true}}',
    'handlers/health.ts': 'export const h = 1;',
    ...extra,
  };
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(join(root, path)), { recursive: true });
    await writeFile(join(root, path), text);
  }
  await symlink(join(ROOT, 'node_modules'), join(root, 'node_modules'));
  const ruleSet = { forbidden: rules.forbidden };
  const { output } = await cruise(['lib', 'handlers', 'test'], {
    ...rules.options,
    baseDir: root,
    ruleSet,
    validate: true,
  });
  return (output as ICruiseResult).summary.violations.map((violation) => violation.rule.name);
}

test('a tree that keeps the direction breaks no rule', async () => {
  expect(await broken('clean', {})).toEqual([]);
});

test.each(PLANTED)('the import rules fire when %s', async (fault, files, rule) => {
  expect(await broken(fault, files)).toContain(rule);
});
