import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { rotateSigningKeys } from '../../../lib/auth/signing-keys.ts';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { applyCatalog } from '../../../lib/catalog/apply.ts';
import { parseCatalog } from '../../../lib/catalog/documents/yaml.ts';
import { createSecretBox, parseMasterKey } from '../../../lib/catalog/secrets/secret-box.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type ServerProcess, startServer } from '../../support/server.ts';

const CLI = join(import.meta.dirname, '../../../bin/cli.ts');
const OLD_KEY = Buffer.alloc(32, 1).toString('base64');
const NEW_KEY = Buffer.alloc(32, 2).toString('base64');
const fingerprint = (key: string) => createSecretBox(parseMasterKey(key)).keyId;
const wrong = `RELAY_MASTER_KEY has the fingerprint ${fingerprint(NEW_KEY)}, this database was written with ${fingerprint(OLD_KEY)}\n`;

const HOST = 'kind: Host\nmetadata: {name: h}\nspec: {baseURL: "http://127.0.0.1:9"}\n';
const hostKey = (value: string) =>
  `${HOST}---\nkind: HostKey\nmetadata: {name: k}\nspec: {host: h, valueFrom: {kind: stored}, value: "${value}"}\n`;

let directory: string;
let database: TestDatabase;

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'relay-master-key-'));
  database = await createTestDatabase();
});
afterEach(async () => {
  await database.close();
  await rm(directory, { recursive: true, force: true });
});

async function relayBatch(args: string[], env: Record<string, string>) {
  const child = spawn(process.execPath, [CLI, ...args], {
    env: { PATH: process.env.PATH, ...database.postgresEnv, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = { status: null as number | null, out: '', errors: '' };
  child.stdout.on('data', (chunk: Buffer) => (ended.out += chunk));
  child.stderr.on('data', (chunk: Buffer) => (ended.errors += chunk));
  [ended.status] = (await once(child, 'close')) as [number | null];
  return ended;
}

async function run(text: string, values: unknown[] = []) {
  return (await database.db.query<Record<string, unknown>>({ name: text.slice(0, 60), text, values })).rows;
}

const sealed = () =>
  Promise.all([
    run('select * from host_key_secrets order by id'),
    run('select * from token_signing_keys order by kid'),
  ]);

/** Makes new sessions believe that Postgres started so long ago. The server of the tests may be young, or old. */
async function startedAgo(seconds: number): Promise<void> {
  await run(`create function public.pg_postmaster_start_time() returns timestamptz language sql as
    $$ select clock_timestamp() - interval '${seconds} seconds' $$`);
  await run(`do $$ begin
    execute format('alter database %I set search_path = public, pg_catalog', current_database()); end $$`);
}

const addWorker = (instance: string, secondsAgo: number) =>
  run(
    `insert into workers (id, instance, beat_at) values ($1, $2, clock_timestamp() - $3::int * interval '1 second')`,
    [uuidv7(), instance, secondsAgo],
  );

describe('with another master key than that of the database', () => {
  beforeEach(async () => {
    const secretBox = createSecretBox(parseMasterKey(OLD_KEY));
    await applyCatalog(database.db, parseCatalog([{ file: 'c.yaml', text: hostKey('a value') }]), {
      env: {},
      secretBox,
    });
    await rotateSigningKeys(database.db, secretBox);
  });

  test('apply, rotate-signing-key and rekey end with both fingerprints, and the old key still starts the service', async () => {
    const before = await sealed();
    const refused = { status: 1, out: '', errors: wrong };
    const path = join(directory, 'catalog.yaml');
    await writeFile(path, hostKey('another value'));
    expect(await relayBatch(['apply', path], { RELAY_MASTER_KEY: NEW_KEY })).toEqual(refused);
    expect(await relayBatch(['rotate-signing-key'], { RELAY_MASTER_KEY: NEW_KEY })).toEqual(refused);
    const keys = { RELAY_MASTER_KEY: NEW_KEY, RELAY_NEW_MASTER_KEY: OLD_KEY };
    expect(await relayBatch(['rekey'], keys)).toEqual(refused);
    expect(await sealed()).toEqual(before);

    const server = await start(OLD_KEY);
    await server.ready();
    expect(await server.stop()).toBe(0);
  });

  test('the server ends with status 1 and both fingerprints', async () => {
    const server = await start(NEW_KEY);
    expect(await server.exited).toBe(1);
    expect(server.errors()).toBe(wrong);
  });

  test('rekey refuses while a replica runs, and names it', async () => {
    await startedAgo(3600);
    const before = await sealed();
    const keys = { RELAY_MASTER_KEY: OLD_KEY, RELAY_NEW_MASTER_KEY: NEW_KEY };
    const server = await start(OLD_KEY, { RELAY_INSTANCE_ID: 'replica-a' });
    await server.ready();
    await addWorker('replica-b', -60); // however slow this machine is
    await addWorker('lost-long-ago', 3600);
    expect(await relayBatch(['rekey'], keys)).toEqual({
      status: 1,
      out: '',
      errors: expect.stringMatching(/^replicas run with the old master key: stop replica-a, replica-b first/),
    });
    expect(await sealed()).toEqual(before);

    // A stop ends its lease; of the other one only age tells.
    expect(await server.stop()).toBe(0);
    expect((await relayBatch(['rekey'], keys)).errors).toMatch(/stop replica-b first/);
    await run(`update workers set beat_at = beat_at - interval '1 hour'`);
    expect(await relayBatch(['rekey'], keys)).toMatchObject({ status: 0, errors: '' });

    const again = await start(OLD_KEY);
    expect(await again.exited).toBe(1);
    expect(again.errors()).toBe(
      `RELAY_MASTER_KEY has the fingerprint ${fingerprint(OLD_KEY)}, this database was written with ${fingerprint(NEW_KEY)}\n`,
    );
    const right = await start(NEW_KEY);
    await right.ready();
    expect(await right.stop()).toBe(0);
  });

  test('rekey counts every worker as running while Postgres itself is young', async () => {
    await startedAgo(0);
    await addWorker('silent', 3600);
    const keys = { RELAY_MASTER_KEY: OLD_KEY, RELAY_NEW_MASTER_KEY: NEW_KEY };
    expect(await relayBatch(['rekey'], keys)).toMatchObject({
      status: 1,
      errors: expect.stringContaining('stop silent first'),
    });
  });
});

function start(key: string, env: Record<string, string> = {}): Promise<ServerProcess> {
  return startServer({
    home: join(directory, 'home'),
    dsn: database.dsn,
    catalog: HOST,
    env: { RELAY_MASTER_KEY: key, RELAY_SHUTDOWN_DEADLINE_S: '0', ...env },
    waitUntilReady: false,
  });
}
