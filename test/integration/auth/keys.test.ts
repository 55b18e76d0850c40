import { randomBytes, randomUUID } from 'node:crypto';
import type { QueryResultRow } from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { authenticate } from '../../../lib/auth/authenticate.ts';
import { type KeyControlDeps, revokeKey, rotateKey } from '../../../lib/auth/control-keys.ts';
import { generateKey, hashKey } from '../../../lib/auth/keys.ts';
import { recheckCredential } from '../../../lib/auth/recheck.ts';
import { loadCatalog } from '../../../lib/catalog/load.ts';
import { catalogVersion, createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
let deps: KeyControlDeps<{ id: string; prefix: string; revoked: boolean }>;
let refreshed: number;
let id: string;
let plaintext: string;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  await run('truncate catalog_objects cascade');
  [id, plaintext] = await store('k', {});
  refreshed = 0;
  deps = {
    db: database.db,
    random: randomBytes,
    refresh: async () => {
      refreshed = await catalogVersion(database);
    },
    async readKey(tx, keyId) {
      const text = `select o.spec, k.prefix, k.revoked_at from catalog_objects o join relay_keys k using (id)
        where id = $1::uuid`;
      const row = (await tx.query<QueryResultRow>({ name: 'test_key', text, values: [keyId] })).rows[0];
      if (!row) return null;
      const document = { id: keyId, prefix: row.prefix, revoked: row.revoked_at !== null };
      return { document, fromEnv: row.spec.valueFrom !== undefined };
    },
  };
});

const run = (text: string, values?: unknown[]) => database.sql(text, values);

async function store(name: string, spec: object): Promise<[string, string]> {
  const keyId = randomUUID();
  const made = generateKey(randomBytes);
  await run('insert into catalog_objects (id, kind, name, spec) values ($1::uuid, $2, $3, $4)', [
    keyId,
    'Key',
    name,
    spec,
  ]);
  await run('insert into relay_keys (id, hash, prefix) values ($1::uuid, $2, $3)', [keyId, made.hash, made.prefix]);
  return [keyId, made.plaintext];
}

/** Returns the answer of a replica that loads the catalogue now, by the database's clock plus `later` ms. */
async function ask(presented: string, later = 0) {
  const [row] = await run('select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now');
  const catalog = await loadCatalog(database.db, {}, null);
  const tokens = { verify: () => Promise.reject(new Error('no token was presented')) };
  return authenticate({ 'x-api-key': presented }, catalog, { nowMs: row!.now + later, tokens });
}
const refusal = (message: string) => expect.objectContaining({ status: 401, message });
const missing = expect.objectContaining({ status: 404, code: 'not_found' });

describe('POST /keys/by-id/{id}/rotate', () => {
  test('gives a new plaintext once and the key; the old value stops at once without grace', async () => {
    for (const body of [{}, { graceSeconds: 0 }]) {
      const answer = await rotateKey(id, body, deps);
      expect(Object.keys(answer)).toEqual(['plaintext', 'key']);
      expect(answer.plaintext).toMatch(/^sk-wr-[A-Za-z0-9_-]{64}$/);
      expect(answer.key).toEqual({ id, prefix: answer.plaintext.slice(0, 14), revoked: false });
      expect((await ask(answer.plaintext)).credentialId).toBe(id);
      await expect(ask(plaintext)).rejects.toEqual(refusal('api key rotated'));
      plaintext = answer.plaintext;
    }
  });

  test('keeps the old value good until its grace ends, for reads of what it submitted and for running items', async () => {
    const next = await rotateKey(id, { graceSeconds: 86_400 }, deps);
    expect((await ask(plaintext)).owner).toBe(hashKey(plaintext));
    expect((await ask(next.plaintext)).owner).toBe(hashKey(next.plaintext));
    await expect(ask(plaintext, 86_400_000)).rejects.toEqual(refusal('api key rotated'));
    const catalog = await loadCatalog(database.db, {}, null);
    const batch = { ...(await ask(plaintext)), policyId: null };
    const graceUntil = catalog.keysById.get(id)!.graceUntil!;
    expect(recheckCredential(batch, catalog, graceUntil - 1)).toEqual({ ok: true, validUntilMs: graceUntil });
    expect(recheckCredential(batch, catalog, graceUntil)).toEqual({ ok: false, reason: 'api key rotated' });
  });

  test('remembers one previous value: the one before it is unknown, and its items are rotated out', async () => {
    const caller = await ask(plaintext);
    await rotateKey(id, { graceSeconds: 3600 }, deps);
    await rotateKey(id, { graceSeconds: 3600 }, deps);
    await expect(ask(plaintext)).rejects.toEqual(refusal('invalid api key'));
    expect(recheckCredential(caller, await loadCatalog(database.db, {}, null), Date.now())).toEqual({
      ok: false,
      reason: 'api key rotated',
    });
  });

  test('twice at once leaves both in order: one value present, the other previous', async () => {
    const [a, b] = await Promise.all([
      rotateKey(id, { graceSeconds: 60 }, deps),
      rotateKey(id, { graceSeconds: 60 }, deps),
    ]);
    const [row] = await run('select hash, previous_hash from relay_keys where id = $1::uuid', [id]);
    expect([row!.hash, row!.previous_hash].sort()).toEqual([hashKey(a.plaintext), hashKey(b.plaintext)].sort());
  });

  test('is 400 for a revoked key and for one from the environment, and changes nothing', async () => {
    await revokeKey(id, deps);
    const [env, envPlaintext] = await store('env', { valueFrom: { kind: 'env', env: 'KEY' } });
    const version = await catalogVersion(database);
    await expect(rotateKey(id, {}, deps)).rejects.toEqual(
      expect.objectContaining({ status: 400, message: 'a revoked key cannot be rotated' }),
    );
    await expect(rotateKey(env, {}, deps)).rejects.toEqual(
      expect.objectContaining({ status: 400, message: expect.stringContaining('valueFrom') }),
    );
    expect((await ask(envPlaintext)).credentialId).toBe(env);
    expect(await catalogVersion(database)).toBe(version);
  });

  test.each([-1, 86_401, 0.5, '60', null, true])('names graceSeconds in its 400: %o', async (graceSeconds) => {
    await expect(rotateKey(id, { graceSeconds }, deps)).rejects.toEqual(
      expect.objectContaining({
        status: 400,
        code: 'invalid_value',
        param: 'graceSeconds',
        message: 'graceSeconds: must be a whole number of seconds from 0 to 86400',
      }),
    );
  });

  test('refuses an unknown field', async () => {
    await expect(rotateKey(id, { grace: 5 }, deps)).rejects.toEqual(
      expect.objectContaining({ status: 400, param: 'grace', message: '"grace": unknown field' }),
    );
  });

  test.each([randomUUID(), 'k', '', "' or 1=1"])('is 404 for %s', async (unknown) => {
    await expect(rotateKey(unknown, {}, deps)).rejects.toEqual(missing);
  });
});

describe('POST /keys/by-id/{id}/revoke', () => {
  test('refuses the key from then on, its previous value too, and gives it', async () => {
    const next = await rotateKey(id, { graceSeconds: 3600 }, deps);
    expect(await revokeKey(id.toUpperCase(), deps)).toMatchObject({ id, revoked: true });
    await expect(ask(plaintext)).rejects.toEqual(refusal('api key revoked'));
    await expect(ask(next.plaintext)).rejects.toEqual(refusal('api key revoked'));
  });

  test('raises the catalogue version once, and this replica has it when it answers', async () => {
    const before = await catalogVersion(database);
    await revokeKey(id, deps);
    expect(refreshed).toBe(before + 1);
    expect(await revokeKey(id, deps)).toMatchObject({ revoked: true });
    expect(await catalogVersion(database)).toBe(before + 1);
  });

  test.each([randomUUID(), 'k'])('is 404 for %s', async (unknown) => {
    await expect(revokeKey(unknown, deps)).rejects.toEqual(missing);
  });
});
