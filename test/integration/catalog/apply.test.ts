import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { ConfigError } from '../../../lib/base/errors.ts';
import { applyCatalog } from '../../../lib/catalog/apply.ts';
import { CatalogError, type CatalogFault } from '../../../lib/catalog/documents/document.ts';
import { parseCatalog } from '../../../lib/catalog/documents/yaml.ts';
import { loadCatalog } from '../../../lib/catalog/load.ts';
import { checkMasterKey, type RekeyHooks, rekeySecrets } from '../../../lib/catalog/secrets/rekey.ts';
import { createSecretBox, type SecretBox } from '../../../lib/catalog/secrets/secret-box.ts';
import { catalogVersion, createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { ROOT } from '../../support/root.ts';

const FULL = readFileSync(join(ROOT, 'test/support/catalog/full.yaml'), 'utf8');
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
    expect(await catalogVersion(database)).toBe(first.version);
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

  test('lists the dangling references and taken names of a document that has other faults too', async () => {
    const faults = await faultsOf(
      [
        'kind: Binding\nmetadata: {name: b}\nspec: {model: nope, host: broken, pricing: gone, adapter: grpc}',
        'kind: Host\nmetadata: {name: broken}\nspec: {baseURL: "ftp://x"}',
        'kind: Model\nmetadata: {name: m}\nspec: {provider: p, aliases: [nick]}',
        'kind: Model\nmetadata: {name: n}\nspec: {provider: p, aliases: [NICK], color: red}',
        'kind: Policy\nmetadata: {name: p}\nspec: {hostKeys: "k", rateLimit: none, rateLimits: [{}]}',
        'kind: Host\nmetadata: {name: broken}\nspec: {baseURL: "http://127.0.0.1:1"}',
      ].join('\n---\n'),
    );
    expect(faults.map((f) => [f.document, f.field, f.message])).toEqual([
      [1, 'spec.adapter', 'must be one of openai, openai_responses, anthropic, openai_embeddings'],
      [1, 'spec.model', 'refers to Model "nope", which does not exist'],
      [1, 'spec.pricing', 'refers to Pricing "gone", which does not exist'],
      [2, 'spec.baseURL', 'must be an http or https URL'],
      [4, 'spec.color', 'unknown field'],
      [4, 'spec.aliases[0]', 'is an alias that Model "m" has too'],
      [5, 'spec.hostKeys', 'must be a list'],
      [5, 'spec.rateLimits[0].models', 'is required'],
      [5, 'spec.rateLimits[0].rateLimit', 'is required'],
      [5, 'spec.rateLimit', 'refers to RateLimit "none", which does not exist'],
      [6, 'metadata.name', 'is given twice: another Host has it'],
    ]);
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

describe('names', () => {
  const model = (name: string, spec = '') => `kind: Model\nmetadata: {name: ${name}}\nspec: {provider: p${spec}}`;

  test.each([
    ['models', model('gpt-5.4'), model('GPT_5-4'), 'metadata.name'],
    ['exact aliases', model('a', ', aliases: ["x.1"]'), model('b', ', aliases: [X-1]'), 'spec.aliases[0]'],
    ['wildcard aliases', model('a', ', aliases: ["x-*"]'), model('b', ', aliases: [y, "X.*"]'), 'spec.aliases[1]'],
    [
      'snapshots',
      model('a', ', snapshots: [{name: s-1}]'),
      model('b', ', snapshots: [{name: s.1}]'),
      'spec.snapshots[0].name',
    ],
    ['a model and a snapshot', model('a', ', snapshots: [{name: b}]'), model('b'), 'metadata.name'],
  ])('%s claimed by two models are refused, together and one after the other', async (_what, first, second, field) => {
    expect((await faultsOf(`${first}\n---\n${second}`)).map((f) => [f.document, f.field])).toEqual([[2, field]]);
    await apply(first);
    const faults = await faultsOf(second);
    expect(faults.map((f) => [f.document, f.field])).toEqual([[1, field]]);
    expect(faults[0]!.message).toMatch(/^is an? (name|alias) that Model ".+" has too$/);
  });

  test('an alias may move from one model to another in one apply, and may be a model name too', async () => {
    await apply(`${model('a', ', aliases: [x]')}\n---\n${model('b')}`);
    await apply(`${model('a')}\n---\n${model('b', ', aliases: [x, a]')}`);
    expect((await load()).models.get('b')!.aliases).toEqual(['x', 'a']);
  });

  test('a grant, a limit or a replacement that names nothing is a warning', async () => {
    const { warnings } = await apply(
      [
        'kind: Policy\nmetadata: {name: p}\nspec: {models: [p/a, nope, "p/nope@nowhere", "@nowhere"]}',
        model('a', ', deprecation: {status: sunset, replacement: gone}'),
        model('b', ', deprecation: {status: sunset, replacement: p/a}'),
      ].join('\n---\n'),
    );
    expect(warnings.map((w) => [w.name, w.field, w.message])).toEqual([
      ['p', 'spec.models[1]', 'names no provider there is'],
      ['p', 'spec.models[2]', 'names no model and no host there is'],
      ['p', 'spec.models[3]', 'names no host there is'],
      ['a', 'spec.deprecation.replacement', 'names no model there is'],
    ]);
  });
});

describe('secrets', () => {
  const HOST = 'kind: Host\nmetadata: {name: h}\nspec: {baseURL: "http://127.0.0.1:1"}';
  const hostKey = (spec: string) => `${HOST}\n---\nkind: HostKey\nmetadata: {name: k}\nspec: {host: h, ${spec}}`;
  const ENV_KEY = 'valueFrom: {kind: env, env: HK}';
  const STORED = 'valueFrom: {kind: stored}';
  const key = (name: string, variable: string) =>
    `kind: Key\nmetadata: {name: ${name}}\nspec: {valueFrom: {kind: env, env: ${variable}}}`;
  const secrets = async () =>
    (await database.db.query({ name: 'secrets', text: 'select * from host_key_secrets', values: [] })).rowCount;

  test('a host key whose variable is unset is a warning and has no value; an empty variable is unset', async () => {
    for (const HK of [undefined, '']) {
      const { warnings } = await apply(hostKey(ENV_KEY), { env: { HK } });
      expect(warnings.map((w) => [w.field, w.message])).toEqual([['spec.valueFrom.env', 'names HK, which is not set']]);
      const catalog = await loadCatalog(database.db, { HK }, box);
      expect(catalog.hostKeys.get('k')).toMatchObject({ value: null, enabled: true });
    }
    expect((await loadCatalog(database.db, { HK: 'v' }, box)).hostKeys.get('k')!.value).toBe('v');
    expect((await loadCatalog(database.db, { HK: 'v\r\nX: 1' }, box)).hostKeys.get('k')!.value).toBeNull();
  });

  test.each(['topsecret\n', 'topsecret\r\nX: 1', 'topsecret\u0000', ' topsecret', 'topsecreté'])(
    'a variable that holds %j is refused and not repeated',
    async (value) => {
      const faults = await faultsOf(`${hostKey(ENV_KEY)}\n---\n${key('ci', 'HK')}`, { env: { HK: value } });
      expect(faults.map((f) => [f.kind, f.field])).toEqual([
        ['HostKey', 'spec.valueFrom.env'],
        ['Key', 'spec.valueFrom.env'],
      ]);
      expect(JSON.stringify(faults)).not.toContain('topsecret');
    },
  );

  test('a stored value is sealed, kept when left out, and forgotten when the key takes another source', async () => {
    await apply(hostKey(`${STORED}, value: first`));
    expect(await apply(hostKey(`${STORED}, value: first`))).toMatchObject({ version: null });
    expect(await apply(hostKey(STORED))).toMatchObject({ version: null });
    expect((await load()).hostKeys.get('k')!.value).toBe('first');
    const first = (await load()).hostKeys.get('k')!;
    await apply(hostKey(`${STORED}, value: second`));
    const second = (await load()).hostKeys.get('k')!;
    expect([second.value, second.id]).toEqual(['second', first.id]);
    expect(second.breakerKey).not.toBe(first.breakerKey);
    const { rows } = await database.db.query({
      name: 'all',
      text: 'select o::text || coalesce(h::text, $1::text) as text from catalog_objects o left join host_key_secrets h on h.id = o.id',
      values: [''],
    });
    expect(JSON.stringify(rows)).not.toMatch(/first|second/);
    await apply(hostKey(ENV_KEY), { env: { HK: 'v' } });
    expect(await secrets()).toBe(0);
  });

  test('a value cannot be stored without a master key, and none is read without', async () => {
    const faults = await faultsOf(hostKey(`${STORED}, value: v`), { secretBox: null });
    expect(faults.map((f) => [f.field, f.message])).toEqual([
      ['spec.value', 'cannot be stored: RELAY_MASTER_KEY is not set'],
    ]);
    await apply(hostKey(`${STORED}, value: v`));
    expect((await loadCatalog(database.db, env, null)).hostKeys.get('k')!.value).toBeNull();
    expect((await loadCatalog(database.db, env, createSecretBox(randomBytes(32)))).hostKeys.get('k')!.value).toBeNull();
  });

  test('a key whose variable is unset is left out with a warning, and stays when it was made before', async () => {
    const first = await apply(key('ci', 'RK'), { env: {} });
    expect([first.created, first.warnings.map((w) => w.message)]).toEqual([
      0,
      ['names RK, which is not set: the key is left out'],
    ]);
    await apply(key('ci', 'RK'), { env: { RK: 'plaintext' } });
    expect(await apply(key('ci', 'RK'), { env: {} })).toMatchObject({ unchanged: 1, version: null });
    expect((await load()).keysByHash.get(sha256('plaintext'))).toMatchObject({ name: 'ci', prefix: 'plai' });
  });

  test('a changed variable replaces the value at once, and keeps the id', async () => {
    await apply(key('ci', 'RK'), { env: { RK: 'old-plaintext' } });
    const { id } = (await load()).keys.get('ci')!;
    expect(await apply(key('ci', 'RK'), { env: { RK: 'new-plaintext' } })).toMatchObject({ updated: 1 });
    const changed = (await load()).keys.get('ci')!;
    expect(changed).toMatchObject({ id, hash: sha256('new-plaintext'), previousHash: sha256('old-plaintext') });
    expect(changed.graceUntil).toBeLessThanOrEqual(Date.now() + 1000);
  });

  test('two keys cannot have one value, but may swap theirs', async () => {
    const both = `${key('a', 'A')}\n---\n${key('b', 'B')}`;
    const faults = await faultsOf(both, { env: { A: 'same', B: 'same' } });
    expect(faults.map((f) => [f.name, f.field, f.message])).toEqual([
      ['b', 'spec.valueFrom', 'has the value of Key "a"'],
    ]);
    await apply(both, { env: { A: 'one', B: 'two' } });
    await apply(both, { env: { A: 'two', B: 'one' } });
    const { keysByHash } = await load();
    expect([keysByHash.get(sha256('one'))!.name, keysByHash.get(sha256('two'))!.name]).toEqual(['b', 'a']);
  });

  test('a new key may take the value of one that is pruned', async () => {
    await apply(key('a', 'A'), { env: { A: 'one' } });
    await apply(key('b', 'B'), { env: { B: 'one' }, prune: true });
    expect((await load()).keysByHash.get(sha256('one'))!.name).toBe('b');
  });

  test('revoked is one way: a later document does not take it back', async () => {
    await apply(`${key('ci', 'RELAY_KEY_CI').replace('}}', '}, revoked: true}')}`);
    const { revokedAt } = (await load()).keys.get('ci')!;
    expect(revokedAt).toBeTypeOf('number');
    const { warnings } = await apply(key('ci', 'RELAY_KEY_CI').replace('}}', '}, revoked: false}'));
    expect(warnings.map((w) => w.field)).toEqual(['spec.revoked']);
    await apply(key('ci', 'RELAY_KEY_CI'));
    expect((await load()).keys.get('ci')!.revokedAt).toBe(revokedAt);
  });
});

test('a change notifies with the new version, once; no change does not', async () => {
  const client = new pg.Client({ connectionString: database.dsn });
  await client.connect();
  try {
    const heard: string[] = [];
    client.on('notification', ({ channel, payload }) => heard.push(`${channel} ${payload}`));
    await client.query('listen relay_catalog');
    const { version } = await apply('kind: Team\nmetadata: {name: t}');
    await apply('kind: Team\nmetadata: {name: t}');
    await client.query('select 1');
    expect(heard).toEqual([`relay_catalog ${version}`]);
  } finally {
    await client.end();
  }
});

test('applies that come at once are one after the other, and the same ones change once', async () => {
  const results = await Promise.all(Array.from({ length: 4 }, () => apply(FULL)));
  expect(results.map((r) => r.created).sort()).toEqual([0, 0, 0, 20]);
  expect((await load()).version).toBe(results.find((r) => r.version !== null)!.version);
});

test('the master key is checked at start, and changed in one transaction', async () => {
  await apply(FULL);
  const other = createSecretBox(randomBytes(32));
  await expect(checkMasterKey(database.db, null)).rejects.toThrow(/^RELAY_MASTER_KEY is missing/);
  await expect(checkMasterKey(database.db, other)).rejects.toThrow(
    `RELAY_MASTER_KEY has the fingerprint ${other.keyId}, this database was written with ${box.keyId}`,
  );
  await checkMasterKey(database.db, box);

  const requireStopped = async () => {};
  const rekey = (from: SecretBox, to: SecretBox, alsoReseal: RekeyHooks['alsoReseal']) =>
    rekeySecrets(database.db, from, to, { requireStopped, alsoReseal });
  const failing = rekey(box, other, () => Promise.reject(new Error('no')));
  await expect(failing).rejects.toThrow('no');
  await checkMasterKey(database.db, box);
  await expect(rekey(other, box, async () => {})).rejects.toBeInstanceOf(ConfigError);

  const resealed: string[] = [];
  const count = await rekey(box, other, async (_tx, from, to) => {
    resealed.push(from.keyId, to.keyId);
  });
  expect([count, resealed]).toEqual([1, [box.keyId, other.keyId]]);
  await checkMasterKey(database.db, other);
  const catalog = await loadCatalog(database.db, env, other);
  expect(catalog.hostKeys.get('openai-2')!.value).toBe('sk-example-not-a-key');
});

test('a value copied to another row does not open', async () => {
  await apply(FULL);
  const second = 'kind: HostKey\nmetadata: {name: thief}\nspec: {host: openai, valueFrom: {kind: stored}, value: own}';
  await apply(second);
  await database.db.query({
    name: 'steal',
    text: `update host_key_secrets t set nonce = s.nonce, ciphertext = s.ciphertext
           from host_key_secrets s, catalog_objects v, catalog_objects o
           where o.id = t.id and o.name = 'thief' and v.id = s.id and v.name = 'openai-2'`,
    values: [],
  });
  expect((await load()).hostKeys.get('thief')!.value).toBeNull();
  await expect(checkMasterKey(database.db, box)).rejects.toThrow('does not open the stored value');
});
