import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { rotateSigningKeys } from '../../../lib/auth/signing-keys.ts';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createLog } from '../../../lib/base/log.ts';
import { createSecretBox, parseMasterKey } from '../../../lib/catalog/secrets/secret-box.ts';
import { createDb } from '../../../lib/db/database.ts';
import { migrate } from '../../../lib/db/migrate.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import { createStoreCheck } from '../../../lib/payloads/store-check.ts';
import { startEmbedded } from '../../../lib/postgres/embedded.ts';
import { masterKey } from '../../../lib/postgres/generated-secrets.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { ROOT } from '../../support/root.ts';

const CLI = join(ROOT, 'bin/cli.ts');
const OLD_KEY = Buffer.alloc(32, 1).toString('base64');
const NEW_KEY = Buffer.alloc(32, 2).toString('base64');

const HOST = 'kind: Host\nmetadata: {name: h}\nspec: {baseURL: "http://127.0.0.1:9"}\n';
const STORED =
  'kind: HostKey\nmetadata: {name: k}\nspec: {host: h, valueFrom: {kind: stored}, value: "a host key value"}\n';

let directory: string;
let database: TestDatabase;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'relay-cli-'));
  database = await createTestDatabase();
});
afterEach(async () => {
  await database.close();
  await rm(directory, { recursive: true, force: true });
});

interface Ended {
  status: number | null;
  out: string;
  errors: string;
}

/** Runs `relay-batch` with nothing in its environment but what is given, and the test's database. */
async function relayBatch(args: string[], env: Record<string, string> = {}): Promise<Ended> {
  const child = spawn(process.execPath, [CLI, ...args], {
    env: { PATH: process.env.PATH, RELAY_PG_DSN: database.dsn, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended: Ended = { status: null, out: '', errors: '' };
  child.stdout.on('data', (chunk: Buffer) => (ended.out += chunk));
  child.stderr.on('data', (chunk: Buffer) => (ended.errors += chunk));
  [ended.status] = (await once(child, 'close')) as [number | null];
  return ended;
}

async function file(name: string, text: string): Promise<string> {
  const path = join(directory, name);
  await writeFile(path, text);
  return path;
}

async function dropSchema(): Promise<void> {
  const db = createDb({
    dsn: database.dsn,
    max: 1,
    prepared: false,
    applicationName: 'test',
    log: createLog('silent'),
  });
  await db.query({ name: 'drop', text: 'drop schema public cascade; create schema public', values: [] });
  await db.close();
}

describe('relay-batch', () => {
  test('lists its commands', async () => {
    const { status, out } = await relayBatch(['--help']);
    expect(status).toBe(0);
    for (const command of ['apply', 'housekeep', 'migrate', 'rekey', 'rotate-signing-key']) {
      expect(out).toContain(command);
    }
  });

  test('ends with one sentence and status 1 for a bad environment', async () => {
    const { status, errors } = await relayBatch(['apply', directory], { RELAY_PORT: 'x' });
    expect(status).toBe(1);
    expect(errors).toMatch(/^RELAY_PORT is not valid: .*\n$/);
  });

  test('refuses to work on a schema that is older than the release', async () => {
    await dropSchema();
    const { status, errors } = await relayBatch(['apply', await file('a.yaml', HOST)]);
    expect(status).toBe(1);
    expect(errors).toContain('run relay-batch migrate');
  });
});

describe('migrate', () => {
  test('applies what is missing, and nothing the second time', async () => {
    await dropSchema();
    expect(await relayBatch(['migrate'])).toMatchObject({
      status: 0,
      out: expect.stringMatching(/^\d+ migrations applied/),
    });
    expect(await relayBatch(['migrate'])).toMatchObject({ status: 0, out: 'The schema is current.\n' });
  });

  test('asks for a DSN', async () => {
    const { status, errors } = await relayBatch(['migrate'], { RELAY_PG_DSN: '' });
    expect(status).toBe(1);
    expect(errors).toContain('RELAY_PG_DSN is missing');
  });
});

describe('apply', () => {
  test('applies files and directories, and says what it did', async () => {
    await file('a.yaml', HOST);
    expect(await relayBatch(['apply', directory])).toMatchObject({
      status: 0,
      out: '1 created, 0 updated, 0 deleted, 0 unchanged\n',
    });
    expect((await relayBatch(['apply', directory])).out).toBe('0 created, 0 updated, 0 deleted, 1 unchanged\n');
  });

  test('lists every fault, applies nothing and ends with status 1', async () => {
    const path = await file(
      'bad.yaml',
      `${HOST}---\nkind: Hosts\nmetadata: {name: a}\nspec: {}\n---\nkind: Binding\nmetadata: {name: b}\nspec: {model: m, host: h}\n`,
    );
    const { status, out, errors } = await relayBatch(['apply', path]);
    expect({ status, out }).toEqual({ status: 1, out: '' });
    expect(errors).toContain('document 2');
    expect(errors).toContain('document 3');
    expect(await database.sql('select 1 from catalog_objects')).toEqual([]);
  });

  test('deletes what it no longer finds only with --prune', async () => {
    const first = await file('first.yaml', HOST);
    const second = await file('second.yaml', HOST.replace('name: h', 'name: other'));
    await relayBatch(['apply', first]);
    expect((await relayBatch(['apply', second])).out).toContain('0 deleted');
    expect((await relayBatch(['apply', second, '--prune'])).out).toContain('1 deleted');
    expect(await database.sql('select name from catalog_objects')).toEqual([{ name: 'other' }]);
  });

  test('warns of variables that are not set, and applies all the same', async () => {
    const path = await file(
      'a.yaml',
      `${HOST}---\nkind: HostKey\nmetadata: {name: k}\nspec: {host: h, valueFrom: {kind: env, env: NOT_SET}}\n`,
    );
    const { status, errors } = await relayBatch(['apply', path]);
    expect(status).toBe(0);
    expect(errors).toContain('names NOT_SET, which is not set');
  });

  test('applies the example catalogue without any of its keys, with warnings only', async () => {
    const { status, out, errors } = await relayBatch(['apply', join(ROOT, 'demo/catalog')]);
    expect({ status, out }).toMatchObject({ status: 0, out: expect.stringMatching(/^\d+ created, 0 updated/) });
    for (const name of ['OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'DEMO_KEY_1', 'RELAY_KEY_DEMO']) {
      expect(errors).toContain(name);
    }
  });
});

describe('rekey', () => {
  test('encrypts stored secrets and signing keys with the new key, which alone opens them then', async () => {
    await relayBatch(['apply', await file('a.yaml', `${HOST}---\n${STORED}`)], { RELAY_MASTER_KEY: OLD_KEY });
    await relayBatch(['rotate-signing-key'], { RELAY_MASTER_KEY: OLD_KEY });

    const ended = await relayBatch(['rekey'], { RELAY_MASTER_KEY: OLD_KEY, RELAY_NEW_MASTER_KEY: NEW_KEY });
    expect(ended).toMatchObject({ status: 0, out: expect.stringMatching(/^1 host keys/) });
    expect(ended.out + ended.errors).not.toContain(NEW_KEY);
    const { keyId } = createSecretBox(parseMasterKey(NEW_KEY));
    expect(await database.sql('select key_id from host_key_secrets')).toEqual([{ key_id: keyId }]);
    expect(await database.sql('select key_id from token_signing_keys')).toEqual([{ key_id: keyId }]);
    expect((await relayBatch(['rotate-signing-key'], { RELAY_MASTER_KEY: NEW_KEY })).status).toBe(0);
  });

  test('changes nothing with a wrong old key, and asks for what is missing', async () => {
    await relayBatch(['apply', await file('a.yaml', `${HOST}---\n${STORED}`)], { RELAY_MASTER_KEY: OLD_KEY });
    const before = await database.sql('select * from host_key_secrets');
    const wrong = await relayBatch(['rekey'], { RELAY_MASTER_KEY: NEW_KEY, RELAY_NEW_MASTER_KEY: OLD_KEY });
    expect(wrong).toMatchObject({ status: 1, errors: expect.stringContaining('RELAY_MASTER_KEY') });
    expect((await relayBatch(['rekey'], { RELAY_MASTER_KEY: OLD_KEY })).errors).toContain(
      'RELAY_NEW_MASTER_KEY is missing',
    );
    expect((await relayBatch(['rekey'], { RELAY_NEW_MASTER_KEY: NEW_KEY })).errors).toContain(
      'RELAY_MASTER_KEY is missing',
    );
    expect(await database.sql('select * from host_key_secrets')).toEqual(before);
  });
});

describe('rotate-signing-key', () => {
  test('makes a new current key and keeps the last one as previous', async () => {
    const first = await rotateSigningKeys(database.db, createSecretBox(parseMasterKey(OLD_KEY)));
    const { status, out } = await relayBatch(['rotate-signing-key'], { RELAY_MASTER_KEY: OLD_KEY });
    expect(status).toBe(0);
    const keys = await database.sql<{ kid: string; state: string }>(
      'select kid, state from token_signing_keys order by state',
    );
    expect(keys).toEqual([
      { kid: expect.any(String), state: 'current' },
      { kid: first, state: 'previous' },
    ]);
    expect(out).toContain(keys[0]!.kid);
  });

  test('needs a master key', async () => {
    const { status, errors } = await relayBatch(['rotate-signing-key']);
    expect(status).toBe(1);
    expect(errors).toContain('RELAY_MASTER_KEY');
  });
});

describe('housekeep', () => {
  test('deletes payloads that nothing refers to once they are old, and keeps what is young', async () => {
    const store = createFileStore(directory);
    await createStoreCheck(database.db, store)();
    const old = { kind: 'segment', id: uuidv7(Date.now() - 48 * 3_600_000) } as const;
    const young = { kind: 'segment', id: uuidv7(Date.now()) } as const;
    for (const ref of [old, young]) await store.write(ref, [Buffer.from('x')]);

    const ended = await relayBatch(['housekeep'], { RELAY_BATCH_PAYLOAD_DIR: directory });
    expect(ended).toMatchObject({ status: 0, out: 'Housekeeping is done.\n', errors: '' });
    await expect(store.size(old)).rejects.toThrow();
    expect(await store.size(young)).toBe(1);
  });

  test('touches nothing in a payload directory of another database', async () => {
    await createStoreCheck(database.db, createFileStore(join(directory, 'ours')))();
    const other = createFileStore(join(directory, 'other'));
    await other.writeMarker(uuidv7());
    const orphan = { kind: 'segment', id: uuidv7(Date.now() - 48 * 3_600_000) } as const;
    await other.write(orphan, [Buffer.from('x')]);

    const ended = await relayBatch(['housekeep'], { RELAY_BATCH_PAYLOAD_DIR: join(directory, 'other') });
    expect(ended).toMatchObject({ status: 1, errors: expect.stringContaining('payload directory is not shared') });
    expect(await other.size(orphan)).toBe(1);
  });
});

describe('an embedded Postgres', () => {
  test('is found while its server runs, started for a command otherwise, and gets a new master key only when stopped', {
    timeout: 90_000,
  }, async () => {
    const dataDir = join(directory, 'data');
    const env = { RELAY_PG_DSN: '', RELAY_DATA_DIR: dataDir };
    const path = await file('a.yaml', `${HOST}---\n${STORED}`);
    expect((await relayBatch(['apply', path], env)).errors).toContain('there is no database in RELAY_DATA_DIR');

    const embedded = await startEmbedded({ dataDir, log: createLog('silent') });
    try {
      await migrate(embedded.dsn, createLog('silent'));
      expect(await relayBatch(['apply', path], env)).toMatchObject({
        status: 0,
        out: expect.stringContaining('2 created'),
      });
      const refused = await relayBatch(['rekey'], { ...env, RELAY_NEW_MASTER_KEY: NEW_KEY });
      expect(refused).toMatchObject({ status: 1, errors: `data dir in use by pid ${process.pid}\n` });
    } finally {
      await embedded.stop();
    }
    const before = (await masterKey(dataDir)).value;
    expect((await relayBatch(['apply', path], env)).out).toContain('2 unchanged');
    expect(await relayBatch(['rekey'], { ...env, RELAY_NEW_MASTER_KEY: NEW_KEY })).toMatchObject({
      status: 0,
      errors: '',
    });
    expect(before).not.toBe(NEW_KEY);
    expect((await readFile(join(dataDir, 'master-key'), 'utf8')).trim()).toBe(NEW_KEY);
    expect((await relayBatch(['rotate-signing-key'], env)).status).toBe(0);
  });
});
