import { describe, expect, test } from 'vitest';
import { authenticate } from '../../../lib/auth/authenticate.ts';
import { attributionOf, governingPolicy } from '../../../lib/auth/govern.ts';
import { hashKey } from '../../../lib/auth/keys.ts';
import type { Catalog } from '../../../lib/model/catalog.ts';
import { type Callers, callers, NOW, plaintextOf } from '../../support/auth-catalog.ts';

const forToken = (projectId: string | null) => ({
  verify: async () => ({ jti: 'jti', userId: 'user-ann', expiresAt: NOW + 5000, version: 0, projectId }),
});
const keyCaller = (catalog: Catalog) =>
  authenticate({ 'x-api-key': plaintextOf('k') }, catalog, { nowMs: NOW, tokens: forToken(null) });
const tokenCaller = (catalog: Catalog, projectId: string | null) =>
  authenticate({ 'x-api-key': 'ey.a.b' }, catalog, { nowMs: NOW, tokens: forToken(projectId) });

/** A service account key with a policy of its own, of the account, and of the project. */
const everywhere = (disabled: string[] = [], without: string[] = []): Callers => {
  const policy = (name: string) => (without.includes(name) ? {} : { policy: name });
  return {
    policies: ['own', 'account', 'project'].map((name) => ({ name, enabled: !disabled.includes(name) })),
    projects: [{ name: 'x', ...policy('project') }],
    serviceAccounts: [{ name: 'bot', project: 'x', ...policy('account') }],
    keys: [{ name: 'k', principal: { kind: 'serviceaccount', name: 'bot' }, ...policy('own') }],
  };
};

describe('the governing policy', () => {
  test.each([
    ["the key's own", [], 'own'],
    ["its service account's", ['own'], 'account'],
    ["the project's", ['own', 'account'], 'project'],
  ])('is %s when that is the first', async (_name, without, expected) => {
    const catalog = callers(everywhere([], without));
    expect(governingPolicy(await keyCaller(catalog), catalog).name).toBe(expected);
  });

  test("of a token is its project's", async () => {
    const catalog = callers({
      policies: [{ name: 'p' }],
      projects: [{ name: 'x', policy: 'p' }],
      users: [{ name: 'ann' }],
    });
    expect(governingPolicy(await tokenCaller(catalog, 'project-x'), catalog).name).toBe('p');
  });

  test.each([
    [['own'], []],
    [['account'], ['own']],
    [['project'], ['own', 'account']],
  ])('found but disabled is 403 policy_disabled, though a later one is enabled: %o', async (disabled, without) => {
    const catalog = callers(everywhere(disabled, without));
    const caller = await keyCaller(catalog);
    expect(() => governingPolicy(caller, catalog)).toThrow(
      expect.objectContaining({ status: 403, code: 'policy_disabled', message: 'policy disabled' }),
    );
  });

  test('is 403 no_policy when there is none: key, token without project, token whose project is gone', async () => {
    const catalog = callers({ users: [{ name: 'ann' }], keys: [{ name: 'k' }], policies: [{ name: 'p' }] });
    for (const caller of [
      await keyCaller(catalog),
      await tokenCaller(catalog, null),
      await tokenCaller(catalog, 'project-gone'),
    ]) {
      expect(() => governingPolicy(caller, catalog)).toThrow(
        expect.objectContaining({ status: 403, code: 'no_policy', message: 'no policy governs this credential' }),
      );
    }
  });
});

describe('attribution', () => {
  const attribute = async (given: Callers) => {
    const catalog = callers(given);
    const caller = await keyCaller(catalog);
    return attributionOf(caller, governingPolicy(caller, catalog), catalog);
  };

  test('of a service account key has its project and team, whoever owns the policy', async () => {
    expect(
      await attribute({
        policies: [{ name: 'p', project: 'other' }],
        teams: [{ name: 't' }, { name: 'u' }],
        projects: [
          { name: 'x', team: 't' },
          { name: 'other', team: 'u' },
        ],
        serviceAccounts: [{ name: 'bot', project: 'x' }],
        keys: [{ name: 'k', policy: 'p', principal: { kind: 'serviceaccount', name: 'bot' } }],
      }),
    ).toEqual({
      owner: hashKey(plaintextOf('k')),
      policyId: 'policy-p',
      policy: 'p',
      projectId: 'project-x',
      project: 'x',
      teamId: 'team-t',
      team: 't',
      principalKind: 'serviceaccount',
      principalId: 'sa-bot',
      credentialKind: 'key',
      credentialId: 'key-k',
      tokenExpiresAt: null,
      tokenVersion: null,
    });
  });

  test('of a plain key has the project that owns its policy', async () => {
    const given = {
      policies: [{ name: 'p', project: 'x' }],
      teams: [{ name: 't' }],
      projects: [{ name: 'x', team: 't' }],
      keys: [{ name: 'k', policy: 'p' }],
    };
    expect(await attribute(given)).toMatchObject({ project: 'x', team: 't', principalKind: null, principalId: null });
  });

  test('of a plain key under a policy without owner has neither project nor team', async () => {
    const given = { policies: [{ name: 'p' }], keys: [{ name: 'k', policy: 'p' }] };
    expect(await attribute(given)).toMatchObject({ projectId: null, project: null, teamId: null, team: null });
  });

  test('of a token has its user, project, expiry and version', async () => {
    const catalog = callers({
      policies: [{ name: 'p' }],
      projects: [{ name: 'x', policy: 'p' }],
      users: [{ name: 'ann' }],
    });
    const caller = await tokenCaller(catalog, 'project-x');
    expect(attributionOf(caller, governingPolicy(caller, catalog), catalog)).toMatchObject({
      owner: 'user:user-ann',
      projectId: 'project-x',
      principalKind: 'user',
      principalId: 'user-ann',
      credentialKind: 'token',
      credentialId: 'jti',
      tokenExpiresAt: NOW + 5000,
      tokenVersion: 0,
    });
  });
});
