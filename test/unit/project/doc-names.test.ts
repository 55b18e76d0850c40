import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { ROOT } from '../../support/root.ts';

// Documents name files, and functions in files. Both move, and no compiler reads documents.

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const documents = globSync(['README.md', 'CONTRIBUTING.md', 'docs/**/*.md'], { cwd: ROOT }).sort();
const FOLDERS = /^(?:bench|bin|catalog|demo|docs|handlers|infra|lib|migrations|scripts|test)\/[\w./*-]*$/;
/** The entries of `serverless.yml`: a file and a function in it. */
const LAMBDA_ENTRY = /^handlers\/lambda\.\w+$/;

/** Code spans of a document that name a file or a folder of the repository which does not exist. */
function missingPaths(markdown: string): string[] {
  const spans = [...markdown.replace(/^```[\s\S]*?^```/gm, '').matchAll(/`([^`\n]+)`/g)].map(([, span]) => span!);
  const paths = spans.filter((span) => FOLDERS.test(span) && !LAMBDA_ENTRY.test(span) && !span.includes('NNNN'));
  return paths.filter((path) =>
    path.includes('*') ? globSync(path, { cwd: ROOT }).length === 0 : !existsSync(join(ROOT, path)),
  );
}

/**
 * Names that a document places in a file, as `name` in `lib/file.ts` (or two names), and that the file does not have.
 */
function missingNames(markdown: string): string[] {
  const placed = [...markdown.matchAll(/((?:`\w+` and )?`\w+`) in\s+`((?:lib|handlers|bin)\/[\w./-]+\.ts)`/g)];
  return placed.flatMap(([, names, path]) => {
    const source = existsSync(join(ROOT, path!)) ? read(path!) : '';
    const wanted = [...names!.matchAll(/\w{4,}/g)].map(([name]) => name);
    return wanted.filter((name) => !new RegExp(`\\b${name}\\b`).test(source)).map((name) => `${name} in ${path}`);
  });
}

test.each(documents)('%s names files and functions that exist', (path) => {
  expect(missingPaths(read(path))).toEqual([]);
  expect(missingNames(read(path))).toEqual([]);
});

test('a name that has moved is found', () => {
  expect(missingPaths('`lib/none.ts`, `lib/app`, `lib/**/*.sql.ts`, `lib/*.none`, `handlers/lambda.submit`')).toEqual([
    'lib/none.ts',
    'lib/*.none',
  ]);
  expect(
    missingNames('`conclude` in `lib/worker/item/conclude.ts`, `runItem` and `gone` in `lib/worker/item/run.ts`'),
  ).toEqual(['gone in lib/worker/item/run.ts']);
});

test('every case names the test files that prove it, and none that do not exist', () => {
  const tests = globSync('test/**/*.test.ts', { cwd: ROOT }).filter((path) => !path.includes('/project/'));
  const sources = tests.map((path) => ({ name: path.slice('test/'.length, -'.test.ts'.length), text: read(path) }));
  for (const section of read('docs/spec/cases.md').split('\n## Case ').slice(1)) {
    const number = Number.parseInt(section, 10);
    const line = /^Tests: .*$/m.exec(section)?.[0] ?? '';
    const named = [...line.matchAll(/`([\w-]+(?:\/[\w-]+)+)`/g)].map(([, name]) => name!);
    const proving = sources.filter(({ text }) => new RegExp(`\\bcase ${number}\\b`).test(text)).map(({ name }) => name);
    expect(
      named.filter((name) => !sources.some((source) => source.name === name)),
      `case ${number}`,
    ).toEqual([]);
    expect(
      proving.filter((name) => !named.includes(name)),
      `case ${number}`,
    ).toEqual([]);
  }
});
