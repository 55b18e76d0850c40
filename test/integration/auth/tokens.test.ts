import { createHmac, createPublicKey, generateKeyPairSync, randomBytes, randomUUID } from 'node:crypto';
import { SignJWT, UnsecuredJWT } from 'jose';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { authenticate, type TokenVerifier } from '../../../lib/auth/authenticate.ts';
import {
  createToken,
  deleteToken,
  revokeTokensOfUser,
  type TokenControlDeps,
} from '../../../lib/auth/control-tokens.ts';
import {
  checkSigningKeys,
  currentSigningKey,
  openSigningKey,
  resealSigningKeys,
  rotateSigningKeys,
} from '../../../lib/auth/signing-keys.ts';
import { purgeExpiredTokens, readSigningKeys } from '../../../lib/auth/tokens.sql.ts';
import { issueToken, revokeToken, revokeUserTokens } from '../../../lib/auth/tokens.ts';
import { createTokenVerifier } from '../../../lib/auth/verify-token.ts';
import { createLog } from '../../../lib/base/log.ts';
import { loadCatalog } from '../../../lib/catalog/load.ts';
import { readRevokedTokens } from '../../../lib/catalog/revoked-tokens.sql.ts';
import { createSecretBox } from '../../../lib/catalog/secrets/secret-box.ts';
import type { Db } from '../../../lib/db/database.ts';
import { catalogVersion, createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

const log = createLog('silent');
const box = createSecretBox(randomBytes(32));
const invalid = expect.objectContaining({ status: 401, code: 'invalid_token', message: 'invalid token' });
const revoked = expect.objectContaining({ status: 401, code: 'token_revoked', message: 'token revoked' });

let database: TestDatabase;
let ann: string;
let bob: string;
let project: string;

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  await run('truncate catalog_objects, token_signing_keys, tokens cascade');
  [ann, bob, project] = [await object('User', 'ann'), await object('User', 'bob'), await object('Project', 'x')];
});

const run = (text: string, values?: unknown[]) => database.sql(text, values);

async function object(kind: string, name: string, spec: object = {}): Promise<string> {
  const id = randomUUID();
  await run('insert into catalog_objects (id, kind, name, spec) values ($1::uuid, $2, $3, $4)', [id, kind, name, spec]);
  return id;
}

const snapshot = () => loadCatalog(database.db, {}, null);

/** A replica's verifier, on a pool that counts its queries, and a clock that stands until the test moves it. */
function replica(masterBox = box) {
  const state = { queries: 0, time: 0, down: false };
  const db: Db = {
    query: (statement) => {
      state.queries++;
      return database.db.query(state.down ? { ...statement, name: 'down', text: 'select 1 from no_table' } : statement);
    },
  };
  const tokens = createTokenVerifier({ db, box: masterBox, log, monotonic: () => state.time });
  return Object.assign(state, { tokens });
}

async function ask(token: string, tokens: TokenVerifier, nowMs = Date.now()) {
  return authenticate({ authorization: `Bearer ${token}` }, await snapshot(), { nowMs, tokens });
}

const issue = (userId = ann, projectId: string | null = null) =>
  issueToken(database.db, box, { userId, projectId, ttlSeconds: 3600 });

describe('an issued token', () => {
  test('names its user, project, jti and expiry, and a second replica takes it', async () => {
    const { token, jti, expiresAt } = await issue(ann, project);
    expect(await ask(token, replica().tokens)).toMatchObject({
      owner: `user:${ann}`,
      credentialKind: 'token',
      credentialId: jti,
      project: { id: project },
      tokenExpiresAt: expiresAt,
      tokenVersion: 0,
    });
  });

  test('holds iss relay, sub, jti, exp, ver and prj, under a kid and EdDSA', async () => {
    const { token, jti, expiresAt } = await issue(ann, project);
    const [header, claims] = token
      .split('.')
      .slice(0, 2)
      .map((part) => JSON.parse(Buffer.from(part, 'base64url').toString()));
    const [key] = await readSigningKeys(database.db);
    expect(header).toEqual({ alg: 'EdDSA', kid: key!.kid, typ: 'JWT' });
    expect(claims).toEqual({
      iss: 'relay',
      sub: ann,
      jti,
      exp: expiresAt / 1000,
      iat: expect.any(Number),
      ver: 0,
      prj: project,
    });
  });

  test('is expired from its exp on', async () => {
    const { token, expiresAt } = await issue();
    const { tokens } = replica();
    expect((await ask(token, tokens, expiresAt - 1)).owner).toBe(`user:${ann}`);
    await expect(ask(token, tokens, expiresAt)).rejects.toEqual(
      expect.objectContaining({ status: 401, code: 'token_expired', message: 'token expired' }),
    );
  });

  test('costs no query once the keys are in memory', async () => {
    const { token } = await issue();
    const one = replica();
    const catalog = await snapshot();
    for (let i = 0; i < 20; i++) await one.tokens.verify(token, catalog.version);
    expect(one.queries).toBe(1);
  });
});

describe('revocation', () => {
  test('of one token is seen by a second replica as soon as it has the new catalogue version', async () => {
    const other = replica();
    const [first, second] = [await issue(), await issue()];
    await ask(first.token, other.tokens);
    const before = await catalogVersion(database);
    expect(await revokeToken(database.db, first.jti)).toBe(true);
    expect(await catalogVersion(database)).toBe(before + 1);
    await expect(ask(first.token, other.tokens)).rejects.toEqual(revoked);
    expect((await ask(second.token, other.tokens)).credentialId).toBe(second.jti);
  });

  test('again is no error and changes nothing; of a token never issued it says so', async () => {
    const { jti } = await issue();
    await revokeToken(database.db, jti);
    const version = await catalogVersion(database);
    expect(await revokeToken(database.db, jti)).toBe(true);
    expect(await revokeToken(database.db, randomUUID())).toBe(false);
    expect(await catalogVersion(database)).toBe(version);
  });

  test("of a user's tokens ends all issued before, none issued later, and no other user's", async () => {
    const { tokens } = replica();
    const [old, others] = [await issue(ann), await issue(bob)];
    expect(await revokeUserTokens(database.db, ann)).toBe(1);
    const fresh = await issue(ann);
    await expect(ask(old.token, tokens)).rejects.toEqual(revoked);
    expect((await ask(fresh.token, tokens)).tokenVersion).toBe(1);
    expect((await ask(others.token, tokens)).owner).toBe(`user:${bob}`);
    expect(await revokeUserTokens(database.db, ann)).toBe(2);
    await expect(ask(fresh.token, tokens)).rejects.toEqual(revoked);
  });

  test('notifies every listener of the catalogue when it commits', async () => {
    const { jti } = await issue();
    const client = new pg.Client({ connectionString: database.dsn });
    await client.connect();
    try {
      await client.query('listen relay_catalog');
      const heard = new Promise<string | undefined>((resolve) => {
        client.once('notification', (message) => resolve(message.payload));
      });
      await revokeToken(database.db, jti);
      expect(await heard).toBe(String(await catalogVersion(database)));
    } finally {
      await client.end();
    }
  });

  test('is forgotten an hour after the token expired, not before', async () => {
    const [gone, recent] = [await issue(), await issue()];
    for (const { jti } of [gone, recent]) await revokeToken(database.db, jti);
    const age = (jti: string, by: string) =>
      run(
        `update tokens set issued_at = issued_at - $2::interval, expires_at = clock_timestamp() - $2::interval
        where jti = $1::uuid`,
        [jti, by],
      );
    await age(gone.jti, '61 minutes');
    await age(recent.jti, '59 minutes');
    expect(await readRevokedTokens(database.db)).toEqual(new Set([recent.jti]));
    expect(await purgeExpiredTokens(database.db)).toBe(1);
    expect(await run('select jti from tokens')).toEqual([{ jti: recent.jti }]);
  });
});

describe('signing keys', () => {
  test('are one, though two replicas issue their first tokens at once', async () => {
    const tokens = await Promise.all(Array.from({ length: 6 }, () => issue()));
    expect(await readSigningKeys(database.db)).toHaveLength(1);
    const { tokens: verifier } = replica();
    for (const { token } of tokens) expect((await ask(token, verifier)).owner).toBe(`user:${ann}`);
  });

  test('verify as current and as previous, on a replica that had only the old one; the one before stops', async () => {
    const other = replica();
    const first = await issue();
    await ask(first.token, other.tokens);
    await rotateSigningKeys(database.db, box);
    const second = await issue();
    expect((await ask(second.token, other.tokens)).credentialId).toBe(second.jti);
    expect((await ask(first.token, other.tokens)).credentialId).toBe(first.jti);
    await rotateSigningKeys(database.db, box);
    await expect(ask(first.token, other.tokens)).rejects.toEqual(invalid);
    expect((await ask(second.token, other.tokens)).credentialId).toBe(second.jti);
    expect((await readSigningKeys(database.db)).map((row) => row.state).sort()).toEqual(['current', 'previous']);
  });

  test('that are unknown are looked for once, then once a second, whatever comes', async () => {
    const other = replica();
    const stale = await snapshot();
    await expect(other.tokens.verify((await issue()).token, stale.version)).resolves.toBeTruthy();
    await rotateSigningKeys(database.db, box);
    const { token } = await issue();
    other.queries = 0;
    for (let i = 0; i < 5; i++) await expect(other.tokens.verify(token, stale.version)).rejects.toEqual(invalid);
    expect(other.queries).toBe(0);
    other.time += 1000;
    await Promise.all(Array.from({ length: 5 }, () => other.tokens.verify(token, stale.version)));
    expect(other.queries).toBe(1);
  });

  test('are stored sealed: no private key is in the row, and another row or master key does not open it', async () => {
    await issue();
    const row = (await readSigningKeys(database.db))[0]!;
    const key = openSigningKey(row, box).privateKey.export({ format: 'der', type: 'pkcs8' });
    expect(row.ciphertext.includes(key.subarray(-32))).toBe(false);
    expect(() => openSigningKey({ ...row, kid: randomUUID() }, box)).toThrow();
    expect(() => openSigningKey(row, createSecretBox(randomBytes(32)))).toThrow(/master key/);
  });

  test('sealed by another master key make tokens invalid, not errors', async () => {
    const { token } = await issue();
    await expect(ask(token, replica(createSecretBox(randomBytes(32))).tokens)).rejects.toEqual(invalid);
  });

  test('that the master key does not open, or that have none, stop the start with a sentence', async () => {
    await checkSigningKeys(database.db, null);
    await issue();
    await checkSigningKeys(database.db, box);
    const fault = (message: RegExp) =>
      expect.objectContaining({ name: 'ConfigError', message: expect.stringMatching(message) });
    await expect(checkSigningKeys(database.db, null)).rejects.toEqual(fault(/^RELAY_MASTER_KEY is missing/));
    await expect(checkSigningKeys(database.db, createSecretBox(randomBytes(32)))).rejects.toEqual(
      fault(/^RELAY_MASTER_KEY does not open/),
    );
  });

  test('move to a new master key with their tokens still good', async () => {
    const { token, jti } = await issue();
    await rotateSigningKeys(database.db, box);
    const next = createSecretBox(randomBytes(32));
    await database.db.transaction((tx) => resealSigningKeys(tx, box, next));
    expect((await ask(token, replica(next).tokens)).credentialId).toBe(jti);
  });

  test('in memory go on verifying while Postgres cannot be read; without any the answer is 503', async () => {
    const { token, jti } = await issue();
    const [loaded, fresh] = [replica(), replica()];
    await loaded.tokens.verify(token, 1);
    loaded.down = true;
    fresh.down = true;
    expect(await loaded.tokens.verify(token, 2)).toMatchObject({ jti });
    await expect(fresh.tokens.verify(token, 1)).rejects.toEqual(
      expect.objectContaining({ status: 503, code: 'not_ready' }),
    );
    fresh.down = false;
    fresh.time += 1000;
    expect(await fresh.tokens.verify(token, 1)).toMatchObject({ jti });
  });
});

describe('a token that is not ours is invalid', () => {
  /** Claims as ours, with what a test changes of them, signed as it says. */
  async function forge(change: { claims?: object; header?: object; key?: 'current' | 'stranger' }): Promise<string> {
    const current = await database.db.transaction((tx) => currentSigningKey(tx, box));
    const key = change.key === 'stranger' ? generateKeyPairSync('ed25519').privateKey : current.privateKey;
    const exp = Math.floor(Date.now() / 1000) + 600;
    return new SignJWT({ iss: 'relay', sub: ann, jti: randomUUID(), exp, ver: 0, ...change.claims })
      .setProtectedHeader({ alg: 'EdDSA', kid: current.kid, ...change.header })
      .sign(key);
  }
  const refused = async (token: string) => expect(ask(token, replica().tokens)).rejects.toEqual(invalid);

  test('though the same forgery without a change is taken', async () => {
    expect((await ask(await forge({}), replica().tokens)).owner).toBe(`user:${ann}`);
  });

  test('alg none', async () => {
    const claims = { iss: 'relay', sub: ann, jti: randomUUID(), exp: Math.floor(Date.now() / 1000) + 600, ver: 0 };
    const unsigned = new UnsecuredJWT(claims).encode();
    const kid = (await database.db.transaction((tx) => currentSigningKey(tx, box))).kid;
    const header = Buffer.from(JSON.stringify({ alg: 'none', kid })).toString('base64url');
    await refused(unsigned);
    await refused(`${header}.${unsigned.split('.')[1]}.`);
  });

  test('HS256 with the public key as its secret', async () => {
    const { kid, privateKey } = await database.db.transaction((tx) => currentSigningKey(tx, box));
    const publicKey = createPublicKey(privateKey);
    const genuine = await forge({});
    const header = Buffer.from(JSON.stringify({ alg: 'HS256', kid })).toString('base64url');
    const signed = `${header}.${genuine.split('.')[1]}`;
    const secrets = [
      publicKey.export({ format: 'pem', type: 'spki' }),
      publicKey.export({ format: 'der', type: 'spki' }),
      publicKey.export({ format: 'der', type: 'spki' }).subarray(-32),
    ];
    for (const secret of secrets) {
      await refused(`${signed}.${createHmac('sha256', secret).update(signed).digest('base64url')}`);
    }
  });

  test('an HS256 header over the genuine signature', async () => {
    const [header, claims, signature] = (await forge({})).split('.') as [string, string, string];
    const other = { ...JSON.parse(Buffer.from(header, 'base64url').toString()), alg: 'HS256' };
    await refused(`${Buffer.from(JSON.stringify(other)).toString('base64url')}.${claims}.${signature}`);
  });

  test("another's signature under our kid", async () => refused(await forge({ key: 'stranger' })));
  test('an unknown kid', async () => refused(await forge({ header: { kid: randomUUID() } })));
  test('no kid', async () => refused(await forge({ header: { kid: undefined } })));

  test('the kid of our other key', async () => {
    const token = await forge({});
    await rotateSigningKeys(database.db, box);
    const { kid } = await database.db.transaction((tx) => currentSigningKey(tx, box));
    const header = Buffer.from(JSON.stringify({ alg: 'EdDSA', kid })).toString('base64url');
    await refused([header, ...token.split('.').slice(1)].join('.'));
  });

  test('a payload that was changed', async () => {
    const [header, claims, signature] = (await issue()).token.split('.') as [string, string, string];
    const other = { ...JSON.parse(Buffer.from(claims, 'base64url').toString()), sub: bob };
    await refused(`${header}.${Buffer.from(JSON.stringify(other)).toString('base64url')}.${signature}`);
  });

  test.each([
    ['another issuer', { iss: 'other' }],
    ['no issuer', { iss: undefined }],
    ['no subject', { sub: undefined }],
    ['no jti', { jti: undefined }],
    ['no exp', { exp: undefined }],
    ['no ver', { ver: undefined }],
    ['a negative ver', { ver: -1 }],
    ['a project that is no id', { prj: 7 }],
  ])('%s, though signed by us', async (_name, claims) => refused(await forge({ claims })));

  test.each(['ey..', 'eyJh.e30.', 'ey.%%.x', `ey${'A'.repeat(5000)}.b.c`])('%.20s', (text) => refused(text));
});

describe('the control API', () => {
  let deps: TokenControlDeps;
  beforeEach(async () => {
    let catalog = await snapshot();
    deps = {
      db: database.db,
      box,
      catalog: () => catalog,
      refresh: async () => {
        catalog = await snapshot();
      },
    };
  });

  test('POST /tokens takes names or ids and answers token, jti and expiresAt', async () => {
    for (const [user, prj] of [
      ['ann', 'x'],
      [ann, project],
    ]) {
      const answer = await createToken({ user, project: prj, ttl: 60 }, deps);
      expect(Object.keys(answer).sort()).toEqual(['expiresAt', 'jti', 'token']);
      expect(answer.expiresAt).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.000Z$/);
      expect(await ask(answer.token, replica().tokens)).toMatchObject({ principalId: ann, project: { id: project } });
    }
  });

  test('POST /tokens finds a user that another replica made a moment ago', async () => {
    const late = await object('User', 'late');
    const { token } = await createToken({ user: 'late', ttl: 1 }, deps);
    expect((await ask(token, replica().tokens)).principalId).toBe(late);
  });

  test.each([
    ['user', {}, 'missing_required_parameter', 'missing required parameter: user'],
    ['ttl', { user: 'ann' }, 'missing_required_parameter', 'missing required parameter: ttl'],
    ['user', { user: 5, ttl: 60 }, 'invalid_value', 'user: must be a name or an id'],
    ['user', { user: 'a\u0000', ttl: 60 }, 'invalid_value', 'user: must be a name or an id'],
    ['user', { user: 'nobody', ttl: 60 }, 'invalid_value', 'user: "nobody" does not exist'],
    ['project', { user: 'ann', project: 'nope', ttl: 60 }, 'invalid_value', 'project: "nope" does not exist'],
    ...[0, 2_592_001, 1.5, '60', null, -1, 1e300].map((ttl) => {
      const message = 'ttl: must be a whole number of seconds from 1 to 2592000';
      return ['ttl', { user: 'ann', ttl }, 'invalid_value', message] as const;
    }),
    ['extra', { user: 'ann', ttl: 60, extra: 1 }, 'invalid_value', '"extra": unknown field'],
  ] as const)('POST /tokens names %s in its 400: %o', async (param, body, code, message) => {
    await expect(createToken(body, deps)).rejects.toEqual(
      expect.objectContaining({ status: 400, code, param, message }),
    );
    expect(await run('select jti from tokens')).toEqual([]);
  });

  test.each([null, [], 'x', undefined])('POST /tokens refuses a body that is no object: %o', async (body) => {
    await expect(createToken(body, deps)).rejects.toEqual(expect.objectContaining({ status: 400 }));
  });

  test('POST /tokens refuses a disabled user, and without a master key says what is missing', async () => {
    await object('User', 'off', { enabled: false });
    await expect(createToken({ user: 'off', ttl: 60 }, deps)).rejects.toEqual(
      expect.objectContaining({ status: 400, param: 'user', message: 'user: "off" is disabled' }),
    );
    await expect(createToken({ user: 'ann', ttl: 60 }, { ...deps, box: null })).rejects.toEqual(
      expect.objectContaining({ status: 409, message: expect.stringContaining('RELAY_MASTER_KEY') }),
    );
  });

  test('DELETE /tokens/{jti} is in force on this replica when it answers, and works twice', async () => {
    const { jti } = await createToken({ user: 'ann', ttl: 60 }, deps);
    await deleteToken(jti.toUpperCase(), deps);
    expect(deps.catalog().revokedTokens.has(jti)).toBe(true);
    await deleteToken(jti, deps);
  });

  test.each([randomUUID(), 'x', '', "'"])('DELETE /tokens/%s is 404', async (jti) => {
    await expect(deleteToken(jti, deps)).rejects.toEqual(expect.objectContaining({ status: 404, code: 'not_found' }));
  });

  test('POST /users/by-id/{id}/revoke-tokens gives the new version, in force when it answers', async () => {
    expect(await revokeTokensOfUser(ann, deps)).toEqual({ id: ann, tokenVersion: 1 });
    expect(deps.catalog().usersById.get(ann)?.tokenVersion).toBe(1);
  });

  test('POST /users/by-id/{id}/revoke-tokens is 404 for an unknown id, a name, another kind, and one deleted since', async () => {
    const missing = expect.objectContaining({ status: 404, code: 'not_found' });
    for (const id of [randomUUID(), 'ann', project]) {
      await expect(revokeTokensOfUser(id, deps)).rejects.toEqual(missing);
    }
    await run('delete from catalog_objects where id = $1::uuid', [ann]);
    expect(deps.catalog().usersById.has(ann)).toBe(true);
    await expect(revokeTokensOfUser(ann, deps)).rejects.toEqual(missing);
  });
});
