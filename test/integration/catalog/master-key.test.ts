import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { startServer } from '../../../bin/serve.ts';
import { loadConfig } from '../../../lib/app/config.ts';
import { checkSigningKeys, resealSigningKeys, rotateSigningKeys } from '../../../lib/auth/signing-keys.ts';
import { issueToken } from '../../../lib/auth/tokens.ts';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createLog } from '../../../lib/base/log.ts';
import { applyCatalog } from '../../../lib/catalog/apply.ts';
import { parseCatalog } from '../../../lib/catalog/documents/yaml.ts';
import { requireMasterKey } from '../../../lib/catalog/secrets/master-key.ts';
import { checkMasterKey, rekeySecrets } from '../../../lib/catalog/secrets/rekey.ts';
import { createSecretBox, type SecretBox } from '../../../lib/catalog/secrets/secret-box.ts';
import { listLiveInstances } from '../../../lib/worker/lease/lease.sql.ts';
import { startControl } from '../../support/catalog/control-server.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

const HOST = 'kind: Host\nmetadata: {name: h}\nspec: {baseURL: "http://127.0.0.1:9"}\n';
const hostKey = (name: string, value: string) =>
  `${HOST}---\nkind: HostKey\nmetadata: {name: ${name}}\nspec: {host: h, valueFrom: {kind: stored}, value: "${value}"}\n`;

const ours = createSecretBox(randomBytes(32));
const other = createSecretBox(randomBytes(32));
const sentence = `RELAY_MASTER_KEY has the fingerprint ${other.keyId}, this database was written with ${ours.keyId}`;
const refused = expect.objectContaining({ status: 409, code: 'conflict', message: sentence });

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database?.close());
beforeEach(async () => {
  await run('truncate catalog_objects, token_signing_keys, tokens cascade');
});

async function run(text: string, values: unknown[] = []) {
  return (await database.db.query<Record<string, unknown>>({ name: text.slice(0, 60), text, values })).rows;
}

const apply = (text: string, secretBox: SecretBox) =>
  applyCatalog(database.db, parseCatalog([{ file: 'c.yaml', text }]), { env: {}, secretBox });
const rotate = (box: SecretBox) => rotateSigningKeys(database.db, box);
const issue = (box: SecretBox) => issueToken(database.db, box, { userId: uuidv7(), projectId: null, ttlSeconds: 60 });
const rekey = (from: SecretBox, to: SecretBox, whileLocked: () => Promise<void> = async () => {}) =>
  rekeySecrets(database.db, from, to, {
    requireStopped: whileLocked,
    alsoReseal: resealSigningKeys,
  });

/** Checks and reads the keys as a start does. */
async function start(box: SecretBox | null): Promise<void> {
  await checkMasterKey(database.db, box);
  await checkSigningKeys(database.db, box);
}

/** Every stored thing that a refused write must leave as it is. */
const stored = () =>
  Promise.all([
    run('select * from catalog_objects order by id'),
    run('select * from host_key_secrets order by id'),
    run('select * from token_signing_keys order by kid'),
    run('select * from tokens order by jti'),
    run('select version from catalog_state'),
  ]);

/** Resolves when this many sessions wait for a lock of that type. */
const waiting = (sessions: number, type: 'advisory' | 'relation' = 'advisory') =>
  vi.waitUntil(
    async () =>
      (
        await run(
          `select 1 from pg_locks where locktype = $1 and not granted
            and database = (select oid from pg_database where datname = current_database())`,
          [type],
        )
      ).length >= sessions,
    { interval: 5, timeout: 20_000 },
  );

describe('another master key than that of the database', () => {
  test('cannot store a host key, rotate the signing key or issue a token, and changes nothing', async () => {
    await apply(hostKey('k', 'a value'), ours);
    await issue(ours);
    const before = await stored();
    // The same value, another value, one more key.
    for (const text of [hostKey('k', 'a value'), hostKey('k', 'another'), hostKey('second', 'a value')]) {
      await expect(apply(text, other)).rejects.toEqual(refused);
    }
    await expect(rotate(other)).rejects.toEqual(refused);
    await expect(issue(other)).rejects.toEqual(refused);
    expect(await stored()).toEqual(before);
    await start(ours);
  });

  test('is refused by the signing keys where there are host keys only, and the other way round', async () => {
    await apply(hostKey('k', 'a value'), ours);
    await expect(rotate(other)).rejects.toEqual(refused);
    await expect(issue(other)).rejects.toEqual(refused);
    expect(await run('select 1 from token_signing_keys')).toEqual([]);

    await run('delete from host_key_secrets');
    await rotate(ours);
    await expect(apply(hostKey('k', 'a value'), other)).rejects.toEqual(refused);
    expect(await run('select 1 from host_key_secrets')).toEqual([]);
    await start(ours);
  });

  test('may write what is not sealed', async () => {
    await apply(hostKey('k', 'a value'), ours);
    expect(await apply(HOST.replace('name: h', 'name: second'), other)).toMatchObject({ created: 1 });
    await start(ours);
  });

  test('is refused by the control API with 409', async () => {
    const control = await startControl({ secretBox: other });
    try {
      const source = parseCatalog([
        { file: 'c.yaml', text: `${hostKey('k', 'a value')}---\nkind: User\nmetadata: {name: u}\n` },
      ]);
      await applyCatalog(control.database.db, source, { env: {}, secretBox: ours });
      await control.catalogCache.refresh();
      const [{ id }] = (
        await control.database.db.query<{ id: string }>({
          name: 'test_host_key',
          text: `select id from catalog_objects where kind = 'HostKey'`,
          values: [],
        })
      ).rows as [{ id: string }];
      const document = (name: string) => ({
        metadata: { name },
        spec: { host: 'h', valueFrom: { kind: 'stored' }, value: 'from the API' },
      });
      for (const answer of [
        await control.call('POST', '/host-keys', document('second')),
        await control.call('PUT', `/host-keys/by-id/${id}`, document('k')),
        await control.call('POST', '/tokens', { user: 'u', ttl: 60 }),
      ]) {
        expect(answer).toMatchObject({ status: 409, json: { error: { code: 'conflict', message: sentence } } });
      }
      await checkMasterKey(control.database.db, ours);
    } finally {
      await control.close();
    }
  });

  test('does not start, and is told both fingerprints', async () => {
    await start(null);
    await apply(hostKey('k', 'a value'), ours);
    const fault = (message: string) => expect.objectContaining({ name: 'ConfigError', message });
    await expect(start(other)).rejects.toEqual(fault(sentence));
    const missing = fault(`RELAY_MASTER_KEY is missing, this database was written with ${ours.keyId}`);
    await expect(start(null)).rejects.toEqual(missing);

    await run('truncate catalog_objects cascade');
    await rotate(ours);
    await expect(start(other)).rejects.toEqual(fault(sentence));
    await expect(start(null)).rejects.toEqual(missing);
  });

  test('does not start on a database that an earlier release has sealed with two keys, until one of them is gone', async () => {
    await apply(hostKey('k', 'a value'), ours);
    await rotate(ours);
    const { nonce, ciphertext } = other.seal(uuidv7(), 'of an earlier release');
    await run('update token_signing_keys set key_id = $1, nonce = $2, ciphertext = $3', [
      other.keyId,
      nonce,
      ciphertext,
    ]);
    const counts = [
      [ours.keyId, '1 host keys, 0 signing keys'],
      [other.keyId, '0 host keys, 1 signing keys'],
    ].sort();
    const written = counts.map(([keyId, count]) => `${keyId} (${count})`).join(' and ');
    for (const box of [ours, other]) {
      const fault = `RELAY_MASTER_KEY has the fingerprint ${box.keyId}, this database was written with ${written}`;
      await expect(start(box)).rejects.toThrow(fault);
      await expect(rotate(box)).rejects.toThrow(fault);
      await expect(rekey(box, createSecretBox(randomBytes(32)))).rejects.toThrow(fault);
    }
    // As docs/catalogue.md says.
    await run('delete from token_signing_keys where key_id = $1', [other.keyId]);
    await start(ours);
    await rotate(ours);
  });
});

describe('at the same time', () => {
  test('the first writes with two keys leave a database of one', async () => {
    const writes = [ours, other].flatMap((box, i) => [
      apply(hostKey(`k${i}`, 'a value'), box),
      rotate(box),
      issue(box),
    ]);
    const settled = await Promise.allSettled(writes);
    const winner = [ours, other].find((_, i) => settled[i * 3]!.status === 'fulfilled')!;
    await start(winner);
    const sealed = await run('select key_id from host_key_secrets union select key_id from token_signing_keys');
    expect(sealed).toEqual([{ key_id: winner.keyId }]);
    expect(settled.filter(({ status }) => status === 'rejected')).toHaveLength(3);
  });

  test('a write waits for one with another key that has not committed yet, and is refused then', async () => {
    const gate = Promise.withResolvers<void>();
    const reached = Promise.withResolvers<void>();
    const first = database.db.transaction(async (tx) => {
      await requireMasterKey(tx, ours.keyId);
      const { keyId, nonce, ciphertext } = ours.seal(uuidv7(), 'a signing key');
      await tx.query({
        name: 'test_seal',
        text: `insert into token_signing_keys (kid, state, key_id, nonce, ciphertext) values ($1, 'previous', $2, $3, $4)`,
        values: [uuidv7(), keyId, nonce, ciphertext],
      });
      reached.resolve();
      await gate.promise;
    });
    await reached.promise;
    const second = expect(apply(hostKey('k', 'a value'), other)).rejects.toEqual(refused);
    await waiting(1);
    gate.resolve();
    await Promise.all([first, second]);
  });

  test('rekey makes every write with the old key wait, and refuses it then; a start as well', async () => {
    await apply(hostKey('k', 'a value'), ours);
    const gate = Promise.withResolvers<void>();
    const reached = Promise.withResolvers<void>();
    const rekeyed = rekey(ours, other, async () => {
      reached.resolve();
      await gate.promise;
    });
    await reached.promise;
    const stale = expect.objectContaining({
      message: `RELAY_MASTER_KEY has the fingerprint ${ours.keyId}, this database was written with ${other.keyId}`,
    });
    const writes = [apply(hostKey('k', 'another'), ours), rotate(ours), issue(ours), start(ours)].map((write) =>
      expect(write).rejects.toEqual(stale),
    );
    await waiting(writes.length);
    gate.resolve();
    expect(await rekeyed).toBe(1);
    await Promise.all(writes);
    await start(other);
  });

  test('rekey waits for a write with the old key, and seals that anew as well', async () => {
    const gate = Promise.withResolvers<void>();
    const reached = Promise.withResolvers<void>();
    const kid = uuidv7();
    const write = database.db.transaction(async (tx) => {
      await requireMasterKey(tx, ours.keyId);
      const { keyId, nonce, ciphertext } = ours.seal(kid, 'a signing key');
      await tx.query({
        name: 'test_seal',
        text: `insert into token_signing_keys (kid, state, key_id, nonce, ciphertext) values ($1, 'previous', $2, $3, $4)`,
        values: [kid, keyId, nonce, ciphertext],
      });
      reached.resolve();
      await gate.promise;
    });
    await reached.promise;
    const rekeyed = rekey(ours, other);
    await waiting(1);
    gate.resolve();
    await Promise.all([write, rekeyed]);
    expect(await run('select kid, key_id from token_signing_keys')).toEqual([{ kid, key_id: other.keyId }]);
  });

  test('a replica that checked its key before a rekey, and took its lease after it, does not start', async () => {
    const home = await mkdtemp(join(tmpdir(), 'relay-master-key-'));
    const masterKey = randomBytes(32);
    const old = createSecretBox(masterKey);
    await apply(hostKey('k', 'a value'), old);
    const gate = Promise.withResolvers<void>();
    const reached = Promise.withResolvers<void>();
    const holding = database.db.transaction(async (tx) => {
      // Leases can be read, and not be taken.
      await tx.query({ name: 'test_lock', text: 'lock table workers in share mode', values: [] });
      reached.resolve();
      await gate.promise;
    });
    await reached.promise;
    const env = {
      ...database.postgresEnv,
      RELAY_DATA_DIR: join(home, 'data'),
      RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
      RELAY_MASTER_KEY: masterKey.toString('base64'),
      RELAY_PORT: '0',
      RELAY_CONTROL_PORT: 'off',
    };
    const server = await startServer(loadConfig(env), env, createLog('silent'));
    try {
      const ended = server.app.ready.catch((error: unknown) => error);
      await waiting(1, 'relation');
      await rekeySecrets(database.db, old, other, {
        requireStopped: async (tx) => expect(await listLiveInstances(tx, 30)).toEqual([]),
        alsoReseal: resealSigningKeys,
      });
      gate.resolve();
      expect(await ended).toMatchObject({
        name: 'ConfigError',
        message: `RELAY_MASTER_KEY has the fingerprint ${old.keyId}, this database was written with ${other.keyId}`,
      });
    } finally {
      gate.resolve();
      await holding;
      await server.stop();
      await rm(home, { recursive: true, force: true });
    }
  });
});
