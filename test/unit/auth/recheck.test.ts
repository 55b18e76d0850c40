import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { hashKey } from '../../../lib/auth/keys.ts';
import { type BatchCredential, policyOf, recheckCredential } from '../../../lib/auth/recheck.ts';
import { callers, NOW, plaintextOf } from '../../support/auth-catalog.ts';

const HASH = hashKey(plaintextOf('k'));
const OLD = hashKey(plaintextOf('old'));
const byKey = (owner = HASH): BatchCredential => ({
  owner,
  credentialKind: 'key',
  credentialId: 'key-k',
  principalId: null,
  tokenExpiresAt: null,
  tokenVersion: null,
});
const byToken = (fields: Partial<BatchCredential> = {}): BatchCredential => ({
  owner: 'user:user-ann',
  credentialKind: 'token',
  credentialId: 'jti',
  principalId: 'user-ann',
  tokenExpiresAt: NOW + 1,
  tokenVersion: 1,
  ...fields,
});

describe('the credential of a batch submitted with a key, as an item starts', () => {
  const check = (fields: object, owner = HASH) =>
    recheckCredential(
      byKey(owner),
      callers({
        keys: [{ name: 'k', ...fields }],
        users: [{ name: 'off', enabled: false }],
        serviceAccounts: [{ name: 'off', enabled: false }],
      }),
      NOW,
    );

  test.each([
    ['api key disabled', { enabled: false }],
    ['api key revoked', { revokedAt: NOW }],
    ['api key expired', { expiresAt: NOW }],
    ['api key rotated', { hash: hashKey('new') }],
    ['api key rotated', { hash: hashKey('new'), previousHash: HASH, graceUntil: NOW }],
    ['api key rotated', { hash: hashKey('newest'), previousHash: hashKey('new'), graceUntil: NOW + 1000 }],
    ['user disabled', { principal: { kind: 'user', name: 'off' } }],
    ['api key disabled', { principal: { kind: 'serviceaccount', name: 'off' } }],
  ])('%s: %o', (reason, fields) => {
    expect(check(fields)).toEqual({ ok: false, reason });
  });

  test('api key deleted, also when a key of the same name and value was made since', () => {
    expect(recheckCredential(byKey(), callers({}), NOW)).toEqual({ ok: false, reason: 'api key deleted' });
    expect(recheckCredential(byKey(), callers({ keys: [{ name: 'k', id: 'another' }] }), NOW)).toEqual({
      ok: false,
      reason: 'api key deleted',
    });
  });

  test('a good one holds until the catalogue changes, its expiry, or the end of its grace, whichever is first', () => {
    expect(check({})).toEqual({ ok: true, validUntilMs: Number.POSITIVE_INFINITY });
    expect(check({ expiresAt: NOW + 5 })).toEqual({ ok: true, validUntilMs: NOW + 5 });
    const rotated = { previousHash: OLD, graceUntil: NOW + 3 };
    expect(check({ ...rotated, expiresAt: NOW + 5 }, OLD)).toEqual({ ok: true, validUntilMs: NOW + 3 });
    expect(check({ ...rotated, expiresAt: NOW + 2 }, OLD)).toEqual({ ok: true, validUntilMs: NOW + 2 });
    expect(check(rotated)).toEqual({ ok: true, validUntilMs: Number.POSITIVE_INFINITY });
  });
});

describe('the credential of a batch submitted with a token, as an item starts', () => {
  const check = (batch: BatchCredential, user: object = {}, revokedTokens: string[] = []) =>
    recheckCredential(batch, callers({ users: [{ name: 'ann', tokenVersion: 1, ...user }], revokedTokens }), NOW);

  test.each([
    ['token expired', byToken({ tokenExpiresAt: NOW }), {}, ['jti']],
    ['token revoked', byToken(), {}, ['jti']],
    ['token revoked', byToken({ tokenVersion: 0 }), {}, []],
    ['token revoked', byToken({ principalId: 'user-gone' }), {}, []],
    ['token revoked', byToken({ tokenVersion: 0 }), { enabled: false }, []],
    ['user disabled', byToken(), { enabled: false }, []],
  ])('%s: %o, user %o', (reason, batch, user, revoked) => {
    expect(check(batch, user, revoked)).toEqual({ ok: false, reason });
  });

  test('a good one holds until it expires', () => {
    expect(check(byToken())).toEqual({ ok: true, validUntilMs: NOW + 1 });
  });
});

test('a result may be kept: it is the same at every moment before validUntilMs, and a bad one for good', () => {
  const at = fc.option(fc.integer({ min: NOW - 5, max: NOW + 5 }), { nil: undefined });
  fc.assert(
    fc.property(at, at, fc.boolean(), fc.nat(10), (expiresAt, graceUntil, old, later) => {
      const rotated = graceUntil === undefined ? {} : { previousHash: OLD, graceUntil };
      const catalog = callers({ keys: [{ name: 'k', ...rotated, ...(expiresAt === undefined ? {} : { expiresAt }) }] });
      const batch = byKey(old ? OLD : HASH);
      const first = recheckCredential(batch, catalog, NOW);
      const again = recheckCredential(batch, catalog, NOW + later);
      if (!first.ok) expect(again.ok).toBe(false);
      else expect(again.ok).toBe(NOW + later < first.validUntilMs);
    }),
  );
});

describe('the policy of a batch, as an item starts', () => {
  const policyId = 'policy-p';

  test('is the one recorded at submit, as it is now', () => {
    const catalog = callers({ policies: [{ name: 'p', models: ['openai'] }] });
    expect(policyOf({ policyId }, catalog)).toBe(catalog.policies.get('p'));
  });

  test('policy not found: deleted, made again under the same name, or never recorded', () => {
    expect(policyOf({ policyId }, callers({}))).toBe('policy_not_found');
    expect(policyOf({ policyId }, callers({ policies: [{ name: 'p', id: 'another' }] }))).toBe('policy_not_found');
    expect(policyOf({ policyId: null }, callers({ policies: [{ name: 'p' }] }))).toBe('policy_not_found');
  });

  test('policy disabled', () => {
    expect(policyOf({ policyId }, callers({ policies: [{ name: 'p', enabled: false }] }))).toBe('policy_disabled');
  });
});
