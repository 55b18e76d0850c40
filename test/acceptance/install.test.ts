import { execFile } from 'node:child_process';
import { chmod, copyFile, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ROOT } from '../support/root.ts';

const run = promisify(execFile);
const SCRIPT = join(ROOT, 'scripts/install.mjs');

// Stands in for npm: notes its arguments, and leaves what npm ci leaves behind.
const NPM = `#!/bin/sh
echo "$*" >>calls
[ -e broken ] && exit 1
mkdir -p node_modules/node/bin
: >node_modules/node/bin/node
chmod +x node_modules/node/bin/node
cp package-lock.json node_modules/.package-lock.json
`;

const lockOf = (version: string, more: object = {}) =>
  JSON.stringify({ packages: { '': {}, 'node_modules/pg': { version }, ...more } });

let clone: string;
beforeEach(async () => {
  clone = await mkdtemp(join(tmpdir(), 'relay-install-'));
  await mkdir(join(clone, 'scripts'));
  await mkdir(join(clone, 'path'));
  await copyFile(SCRIPT, join(clone, 'scripts/install.mjs'));
  await writeFile(join(clone, 'path/npm'), NPM);
  await chmod(join(clone, 'path/npm'), 0o755);
  await writeFile(join(clone, 'package-lock.json'), lockOf('1.0.0'));
});
afterEach(() => rm(clone, { recursive: true, force: true }));

const install = () =>
  run(process.execPath, ['scripts/install.mjs'], {
    cwd: clone,
    env: { PATH: `${join(clone, 'path')}:/usr/bin:/bin`, NODE_ENV: 'production' },
  });
const calls = async () => (await readFile(join(clone, 'calls'), 'utf8').catch(() => '')).split('\n').slice(0, -1);

test('installs a fresh clone once, development and optional packages included, and says so on standard error only', async () => {
  const { stdout, stderr } = await install();
  expect(stdout).toBe('');
  expect(stderr).toContain('npm ci');
  await install();
  expect(await calls()).toHaveLength(1);
  expect((await calls())[0]).toMatch(/^ci --include=dev --include=optional --ignore-scripts=false /);
});

test('installs again when the lock file changed', async () => {
  await install();
  await writeFile(join(clone, 'package-lock.json'), lockOf('1.0.1'));
  await install();
  await install();
  expect(await calls()).toHaveLength(2);
});

test('keeps packages that were installed by hand and are those of the lock file', async () => {
  await run('sh', ['-c', NPM.replace('echo "$*" >>calls', '')], { cwd: clone });
  const elsewhere = { 'node_modules/darwin-only': { version: '1.0.0', optional: true, os: ['none'] } };
  await writeFile(join(clone, 'package-lock.json'), lockOf('1.0.0', elsewhere));
  await install();
  expect(await calls()).toEqual([]);
});

test('tries once and fails with one sentence when npm fails', async () => {
  await writeFile(join(clone, 'broken'), '');
  await expect(install()).rejects.toMatchObject({ code: 1, stderr: expect.stringContaining('npm ci failed') });
  expect(await calls()).toHaveLength(1);
});
