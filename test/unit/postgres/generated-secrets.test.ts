import { mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { loadConfig } from '../../../lib/app/config.ts';
import { ConfigError } from '../../../lib/base/errors.ts';
import { adminToken, instanceId, masterKey, prepareDataDir } from '../../../lib/postgres/generated-secrets.ts';

let dataDir: string;
beforeEach(async () => {
  dataDir = await mkdtemp(join(tmpdir(), 'relay-secrets-'));
});
afterEach(() => rm(dataDir, { recursive: true, force: true }));

test('generates a secret once, for its owner only, and keeps it', async () => {
  const first = await adminToken(dataDir);
  expect(first.value).toMatch(/^[\w-]{43}$/);
  expect(first.path).toBe(join(dataDir, 'admin-token'));
  expect((await stat(first.path)).mode & 0o777).toBe(0o600);
  expect(await adminToken(dataDir)).toEqual(first);
});

test('gives every starter the same secret when many start at once, and leaves no other file', async () => {
  const all = await Promise.all(Array.from({ length: 20 }, () => instanceId(dataDir)));
  expect(new Set(all).size).toBe(1);
  expect(await readdir(dataDir)).toEqual(['instance-id']);
});

test('generates a master key that the configuration accepts', async () => {
  const { value } = await masterKey(dataDir);
  expect(loadConfig({ RELAY_MASTER_KEY: value }).masterKey).toBe(value);
});

test('uses a secret that was put there by hand, without the end of its line', async () => {
  await writeFile(join(dataDir, 'admin-token'), 'by-hand\n');
  expect((await adminToken(dataDir)).value).toBe('by-hand');
});

test('refuses an empty secret instead of taking it for one', async () => {
  await writeFile(join(dataDir, 'admin-token'), '\n');
  await expect(adminToken(dataDir)).rejects.toThrow(ConfigError);
  expect(await readFile(join(dataDir, 'admin-token'), 'utf8')).toBe('\n');
});

test('takes the rights of others away from a data dir that exists', async () => {
  const open = join(dataDir, 'open');
  await mkdir(open, { mode: 0o755 });
  await prepareDataDir(open);
  expect((await stat(open)).mode & 0o777).toBe(0o700);
});

test('names the data dir that cannot be used', async () => {
  const file = join(dataDir, 'file');
  await writeFile(file, '');
  const failed = prepareDataDir(join(file, 'below'));
  await expect(failed).rejects.toThrow(ConfigError);
  await expect(failed).rejects.toThrow(`RELAY_DATA_DIR ${join(file, 'below')} cannot be used`);
});
