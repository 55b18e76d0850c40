import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { applyCatalog } from '../../lib/catalog/apply.ts';
import type { CatalogFault } from '../../lib/catalog/document.ts';
import { CatalogError } from '../../lib/catalog/faults.ts';
import { loadCatalog } from '../../lib/catalog/load.ts';
import { createSecretBox } from '../../lib/catalog/secrets.ts';
import { parseCatalog } from '../../lib/catalog/yaml.ts';
import { readCatalogVersion } from '../../lib/store/catalog_state.sql.ts';
import { createTestDatabase, type TestDatabase } from '../support/postgres.ts';

const FULL = readFileSync(new URL('../support/catalog/full.yaml', import.meta.url), 'utf8');
const box = createSecretBox(randomBytes(32));
const env: Record<string, string | undefined> = {
  OPENAI_API_KEY: 'sk-from-env',
  RELAY_KEY_CI: 'ci-plaintext-for-this-test-only',
  RELAY_KEY_ADA: 'ada-plaintext-for-this-test-only',
};

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database?.close());
beforeEach(async () => {
  await database.db.query({ name: 'wipe', text: 'delete from catalog_objects', values: [] });
});

const apply = (text: string, options: { prune?: boolean; env?: typeof env; secretBox?: typeof box | null } = {}) =>
  applyCatalog(database.db, parseCatalog([{ file: 'c.yaml', text }]), { env, secretBox: box, ...options });
const faultsOf = async (text: string, options = {}): Promise<readonly CatalogFault[]> => {
  const error = await apply(text, options).catch((thrown: unknown) => thrown);
  expect(error).toBeInstanceOf(CatalogError);
  return (error as CatalogError).faults;
};
const load = () => loadCatalog(database.db, env, box);
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');

describe('applying a catalogue', () => {
  test('makes every kind with every field, as the data path sees them', async () => {
    const result = await apply(FULL);
    expect(result).toMatchObject({ created: 20, updated: 0, deleted: 0, unchanged: 0, warnings: [] });
    const catalog = await load();
    expect(catalog.version).toBe(result.version);
    expect(catalog.hosts.get('local')).toMatchObject({ baseURL: 'http://127.0.0.1:9000', noAuth: true, enabled: true });
    expect(catalog.hostKeys.get('openai-1')).toMatchObject({
      value: 'sk-from-env',
      breakerKey: sha256('sk-from-env').slice(0, 12),
      enabled: true,
    });
    expect(catalog.hostKeys.get('openai-2')).toMatchObject({ value: 'sk-example-not-a-key', policy: 'tier-1' });
    expect(catalog.models.get('gpt-4o')).toMatchObject({
      provider: 'openai',
      aliases: ['gpt-4o-latest', 'gpt-4o-*'],
      snapshots: [{ name: 'gpt-4o-2024-11-20' }, { upstreamName: 'gpt-4o-2024-08-06' }],
    });
    expect(catalog.bindings.get('gpt-4o')!.map((b) => [b.name, b.adapter, b.priority, b.enabled])).toEqual([
      ['gpt-4o-openai', 'openai', 0, true],
      ['gpt-4o-openai-responses', 'openai_responses', 0, true],
      ['gpt-4o-local', 'openai', 10, false],
    ]);
    expect(catalog.policies.get('nightly')).toMatchObject({
      models: [],
      hostKeys: ['openai-2'],
      rateLimits: [{ models: ['openai/gpt-4'], rateLimit: 'sixty-a-minute' }],
      keySelection: 'prioritized',
      includeDeprecated: false,
      project: 'search',
      enabled: true,
    });
    expect(catalog.rateLimits.get('sixty-a-minute')!.rules[1]).toEqual({
      meter: 'concurrency',
      amount: 8,
      strategy: 'token-bucket',
    });
    expect(catalog.pricings.get('gpt-4o-openai')).toMatchObject({ currency: 'USD', enabled: true });
    expect(catalog.projects.get('search')).toMatchObject({ team: 'platform', policy: 'default' });
    expect(catalog.users.get('ada')).toMatchObject({ email: 'ada@example.com', tokenVersion: 0, enabled: true });
    const ci = catalog.keysByHash.get(sha256('ci-plaintext-for-this-test-only'))!;
    expect(ci).toMatchObject({
      name: 'ci',
      prefix: 'ci-plaintext-f',
      policy: 'default',
      principal: { kind: 'serviceaccount', name: 'indexer' },
      expiresAt: Date.UTC(2030, 0, 1),
      enabled: true,
    });
    expect(catalog.keysById.get(ci.id)).toBe(ci);
    expect(catalog.keys.get('ada-old')!.revokedAt).toBeTypeOf('number');
  });

  test('a second time changes nothing and tells nobody', async () => {
    const first = await apply(FULL);
    const second = await apply(FULL);
    expect(second).toMatchObject({ created: 0, updated: 0, unchanged: 20, version: null });
    expect(await readCatalogVersion(database.db)).toBe(first.version);
  });

  test('keeps ids when a document changes, and bumps the version once', async () => {
    const first = await apply(FULL);
    const before = (await load()).hosts.get('local')!;
    const result = await apply(FULL.replace('127.0.0.1:9000', '127.0.0.1:9001'));
    expect(result).toMatchObject({ created: 0, updated: 1, unchanged: 19, version: first.version! + 1 });
    expect((await load()).hosts.get('local')).toEqual({ ...before, baseURL: 'http://127.0.0.1:9001' });
  });

  test('with one bad document changes nothing and lists every fault with file, document and field', async () => {
    const faults = await faultsOf(
      [
        'kind: Host\nmetadata: {name: good}\nspec: {baseURL: "http://127.0.0.1:1"}',
        'kind: Host\nmetadata: {name: "b d"}\nspec: {baseURL: "ftp://x", color: red}',
        'kind: Binding\nmetadata: {name: b}\nspec: {model: nope, host: good}',
        'kind: Gadget\nmetadata: {name: g}',
        'kind: Host\nmetadata: {name: good}\nspec: {baseURL: "http://127.0.0.1:2"}',
      ].join('\n---\n'),
    );
    expect(faults.map((f) => [f.file, f.document, f.kind, f.name, f.field, f.message])).toEqual([
      ['c.yaml', 2, 'Host', 'b d', 'metadata.name', 'must be 1-128 characters of A-Z a-z 0-9 . _ -'],
      ['c.yaml', 2, 'Host', 'b d', 'spec.baseURL', 'must be an http or https URL'],
      ['c.yaml', 2, 'Host', 'b d', 'spec.color', 'unknown field'],
      ['c.yaml', 3, 'Binding', 'b', 'spec.model', 'refers to Model "nope", which does not exist'],
      ['c.yaml', 4, null, 'g', 'kind', expect.stringContaining('must be one of Host, HostKey')],
      ['c.yaml', 5, 'Host', 'good', 'metadata.name', 'is given twice: another Host has it'],
    ]);
    expect((await load()).hosts.size).toBe(0);
  });

  test('takes references to what is stored, in any order of documents', async () => {
    await apply('kind: Host\nmetadata: {name: h}\nspec: {baseURL: "http://127.0.0.1:1"}');
    await apply(
      'kind: Binding\nmetadata: {name: b}\nspec: {model: m, host: h}\n---\nkind: Model\nmetadata: {name: m}\nspec: {provider: p}',
    );
    expect((await load()).bindings.get('m')).toHaveLength(1);
  });

  test('prunes only what it applied before, and refuses while something refers to it', async () => {
    const host = (name: string) => `kind: Host\nmetadata: {name: ${name}}\nspec: {baseURL: "http://127.0.0.1:1"}`;
    await apply([host('a'), host('b'), 'kind: Model\nmetadata: {name: m}\nspec: {provider: p}'].join('\n---\n'));
    expect(await apply(host('a'))).toMatchObject({ deleted: 0, unchanged: 1 });
    await database.db.query({ name: 'own', text: `update catalog_objects set applied = name <> 'b'`, values: [] });
    expect(await apply(host('a'), { prune: true })).toMatchObject({ deleted: 1, unchanged: 1 });
    expect([...(await load()).hosts.keys()]).toEqual(['a', 'b']);

    await apply(
      'kind: Binding\nmetadata: {name: x}\nspec: {model: m2, host: a}\n---\nkind: Model\nmetadata: {name: m2}\nspec: {provider: p}',
    );
    await database.db.query({
      name: 'own2',
      text: `update catalog_objects set applied = kind <> 'Binding'`,
      values: [],
    });
    const faults = await faultsOf(host('c'), { prune: true });
    expect(faults.map((f) => [f.kind, f.name, f.field, f.message])).toEqual([
      ['Binding', 'x', 'spec.model', 'refers to Model "m2", which would be pruned'],
      ['Binding', 'x', 'spec.host', 'refers to Host "a", which would be pruned'],
    ]);
  });
});
