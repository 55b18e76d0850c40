import { describe, expect, test } from 'vitest';
import { authenticate, type Headers, type TokenClaims, type TokenVerifier } from '../../../lib/auth/authenticate.ts';
import { hashKey } from '../../../lib/auth/keys.ts';
import { ApiError } from '../../../lib/base/errors.ts';
import type { Catalog } from '../../../lib/model/catalog.ts';
import { callers, NOW, plaintextOf } from '../../support/auth-catalog.ts';

const JTI = '0192f0c1-2222-4222-8222-222222222222';
const TOKEN = 'eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ1In0.c2ln';

/** Stands for a genuine token with these claims: the signature has tests of its own, with real keys. */
const genuine = (claims: Partial<TokenClaims> = {}): TokenVerifier => ({
  verify: async () => ({ jti: JTI, userId: 'user-ann', expiresAt: NOW + 1, version: 0, projectId: null, ...claims }),
});
const noTokens: TokenVerifier = {
  verify: async () => {
    throw new ApiError('invalid_token');
  },
};
const ask = (headers: Headers, catalog: Catalog, tokens = noTokens) =>
  authenticate(headers, catalog, { nowMs: NOW, tokens });
const refusal = (code: string, message: string) => expect.objectContaining({ status: 401, code, message });
const bearer = (text: string) => ({ authorization: `Bearer ${text}` });

describe('where the credential is read from', () => {
  const catalog = callers({ keys: [{ name: 'a' }, { name: 'b' }, { name: 'c' }] });
  const [a, b, c] = ['a', 'b', 'c'].map(plaintextOf) as [string, string, string];

  test('X-WR-API-Key comes first, then Authorization: Bearer, then x-api-key', async () => {
    const all = { 'x-wr-api-key': a, ...bearer(b), 'x-api-key': c };
    expect((await ask(all, catalog)).credentialId).toBe('key-a');
    expect((await ask({ ...bearer(b), 'x-api-key': c }, catalog)).credentialId).toBe('key-b');
    expect((await ask({ 'x-api-key': c, 'api-key': a }, catalog)).credentialId).toBe('key-c');
    expect((await ask({ 'x-api-key': ' ', 'api-key': a }, catalog)).credentialId).toBe('key-a');
  });

  test('a bad key in an earlier header is not rescued by a good one in a later', async () => {
    await expect(ask({ 'x-wr-api-key': 'sk-wr-bad', ...bearer(b) }, catalog)).rejects.toEqual(
      refusal('invalid_api_key', 'invalid api key'),
    );
  });

  test.each([
    ['an empty X-WR-API-Key', { 'x-wr-api-key': '' }],
    ['a blank X-WR-API-Key', { 'x-wr-api-key': '  ' }],
    ['an empty Bearer', { authorization: 'Bearer ' }],
    ['Basic authorization', { authorization: 'Basic dTpw' }],
  ])('%s is passed over', async (_name, headers) => {
    expect((await ask({ ...headers, 'x-api-key': c }, catalog)).credentialId).toBe('key-c');
  });

  test('the scheme Bearer is read in any case', async () => {
    expect((await ask({ authorization: `bEARER  ${b} ` }, catalog)).credentialId).toBe('key-b');
  });
});

describe('401 texts', () => {
  test.each([{}, { 'x-wr-api-key': '' }, { authorization: 'Basic dTpw' }, { authorization: 'Bearer' }])(
    'missing relay key: %o',
    async (headers) => {
      await expect(ask(headers, callers({}))).rejects.toEqual(refusal('missing_api_key', 'missing relay key'));
    },
  );

  test('invalid api key: no key has that hash', async () => {
    await expect(ask(bearer('sk-wr-nobody'), callers({ keys: [{ name: 'k' }] }))).rejects.toEqual(
      refusal('invalid_api_key', 'invalid api key'),
    );
  });

  test('invalid api key: the stored hash itself is no credential', async () => {
    const catalog = callers({ keys: [{ name: 'k' }] });
    await expect(ask(bearer(hashKey(plaintextOf('k'))), catalog)).rejects.toEqual(
      refusal('invalid_api_key', 'invalid api key'),
    );
  });

  test('invalid api key: the map alone is not believed', async () => {
    const catalog = callers({ keys: [{ name: 'k' }] });
    const key = catalog.keys.get('k')!;
    const wrong = { ...catalog, keysByHash: new Map([[hashKey('sk-wr-other'), key]]) };
    await expect(ask(bearer('sk-wr-other'), wrong)).rejects.toEqual(refusal('invalid_api_key', 'invalid api key'));
  });

  const withKey = (fields: object) =>
    ask(
      bearer(plaintextOf('k')),
      callers({
        keys: [{ name: 'k', ...fields }],
        users: [{ name: 'off', enabled: false }],
        serviceAccounts: [{ name: 'off', enabled: false }],
      }),
    );

  test.each([
    ['api key disabled', 'api_key_disabled', { enabled: false }],
    ['api key revoked', 'api_key_revoked', { revokedAt: NOW - 1 }],
    ['api key expired', 'api_key_expired', { expiresAt: NOW }],
    ['api key disabled', 'api_key_disabled', { principal: { kind: 'user', name: 'off' } }],
    ['api key disabled', 'api_key_disabled', { principal: { kind: 'serviceaccount', name: 'off' } }],
    ['api key disabled', 'api_key_disabled', { principal: { kind: 'user', name: 'gone' } }],
    ['api key disabled', 'api_key_disabled', { enabled: false, revokedAt: NOW, expiresAt: NOW }],
    ['api key revoked', 'api_key_revoked', { revokedAt: NOW, expiresAt: NOW }],
  ])('%s (%s): %o', async (message, code, fields) => {
    await expect(withKey(fields)).rejects.toEqual(refusal(code, message));
  });

  test('an expiry a millisecond ahead does not refuse', async () => {
    expect((await withKey({ expiresAt: NOW + 1 })).credentialId).toBe('key-k');
  });

  test('api key rotated: the previous value from the end of its grace on', async () => {
    const rotated = (graceUntil: number) =>
      ask(
        bearer(plaintextOf('old')),
        callers({ keys: [{ name: 'k', previousHash: hashKey(plaintextOf('old')), graceUntil }] }),
      );
    await expect(rotated(NOW)).rejects.toEqual(refusal('api_key_rotated', 'api key rotated'));
    const caller = await rotated(NOW + 1);
    expect(caller).toMatchObject({ credentialId: 'key-k', owner: hashKey(plaintextOf('old')) });
  });

  test('the present value authenticates whatever the grace of the previous one', async () => {
    const fields = { previousHash: hashKey(plaintextOf('old')), graceUntil: NOW - 5 };
    expect((await withKey(fields)).owner).toBe(hashKey(plaintextOf('k')));
  });

  const withToken = (claims: Partial<TokenClaims>, user: object = {}, revokedTokens: string[] = []) =>
    ask(bearer(TOKEN), callers({ users: [{ name: 'ann', ...user }], revokedTokens }), genuine(claims));

  test('invalid token: what the verifier refuses', async () => {
    await expect(ask(bearer(TOKEN), callers({}))).rejects.toEqual(refusal('invalid_token', 'invalid token'));
  });

  test('token expired: from exp on, revoked or not', async () => {
    await expect(withToken({ expiresAt: NOW }, {}, [JTI])).rejects.toEqual(refusal('token_expired', 'token expired'));
  });

  test.each([
    ['its jti', {}, {}, [JTI]],
    ["a version below its user's", { version: 2 }, { tokenVersion: 3 }, []],
    ['its user being disabled', {}, { enabled: false }, []],
    ['its user being deleted', { userId: 'user-gone' }, {}, []],
  ])('token revoked: by %s', async (_by, claims, user, revoked) => {
    await expect(withToken(claims, user, revoked)).rejects.toEqual(refusal('token_revoked', 'token revoked'));
  });

  test('a token of the present version, or of a newer one than the snapshot knows, is good', async () => {
    expect((await withToken({ version: 3 }, { tokenVersion: 3 })).tokenVersion).toBe(3);
    expect((await withToken({ version: 4 }, { tokenVersion: 3 })).tokenVersion).toBe(4);
  });
});

describe('which credentials are tokens', () => {
  test.each(['eya.b', 'ey', 'eya.b.c.d', 'sk-wr-a.b.c', 'Eya.b.c'])('%s is looked up as a key', async (text) => {
    await expect(ask(bearer(text), callers({}), genuine())).rejects.toEqual(
      refusal('invalid_api_key', 'invalid api key'),
    );
  });

  test('ey with exactly two dots is a token in every header', async () => {
    const catalog = callers({ users: [{ name: 'ann' }] });
    for (const headers of [{ 'x-wr-api-key': TOKEN }, bearer(TOKEN), { 'x-api-key': TOKEN }]) {
      expect((await ask(headers, catalog, genuine())).credentialKind).toBe('token');
    }
  });
});

describe('the caller', () => {
  test('of a plain key is its hash, without principal', async () => {
    expect(await ask(bearer(plaintextOf('k')), callers({ keys: [{ name: 'k', policy: 'p' }] }))).toEqual({
      owner: hashKey(plaintextOf('k')),
      credentialKind: 'key',
      credentialId: 'key-k',
      principalKind: null,
      principalId: null,
      keyPolicy: 'p',
      serviceAccount: null,
      project: null,
      tokenExpiresAt: null,
      tokenVersion: null,
    });
  });

  test('of a service account key is that account, in its project', async () => {
    const catalog = callers({
      projects: [{ name: 'x' }],
      serviceAccounts: [{ name: 'bot', project: 'x' }],
      keys: [{ name: 'k', principal: { kind: 'serviceaccount', name: 'bot' } }],
    });
    expect(await ask(bearer(plaintextOf('k')), catalog)).toMatchObject({
      principalKind: 'serviceaccount',
      principalId: 'sa-bot',
      project: { id: 'project-x' },
    });
  });

  test('of a user key is that user, yet the owner is the key', async () => {
    const catalog = callers({
      users: [{ name: 'ann' }],
      keys: [{ name: 'k', principal: { kind: 'user', name: 'ann' } }],
    });
    expect(await ask(bearer(plaintextOf('k')), catalog)).toMatchObject({
      owner: hashKey(plaintextOf('k')),
      principalKind: 'user',
      principalId: 'user-ann',
      project: null,
    });
  });

  test('of any token of a user is the same owner; the project is found by id', async () => {
    const catalog = callers({ users: [{ name: 'ann' }], projects: [{ name: 'x' }] });
    const caller = await ask(bearer(TOKEN), catalog, genuine({ projectId: 'project-x' }));
    expect(caller).toMatchObject({
      owner: 'user:user-ann',
      credentialId: JTI,
      principalKind: 'user',
      principalId: 'user-ann',
      project: { name: 'x' },
      tokenExpiresAt: NOW + 1,
      tokenVersion: 0,
    });
    expect((await ask(bearer(TOKEN), catalog, genuine({ projectId: 'x' }))).project).toBeNull();
  });
});
