import { hashKey } from '../../lib/auth/keys.ts';
import type { Catalog, Policy, Project, RelayKey, ServiceAccount, Team, User } from '../../lib/model/catalog.ts';

export const NOW = Date.UTC(2026, 10, 29, 12);

/** Plaintext of a key of the given name, as tests present it. */
export const plaintextOf = (name: string) => `sk-wr-${name.padEnd(64, '0')}`;

export interface Callers {
  policies?: Partial<Policy>[];
  teams?: Partial<Team>[];
  projects?: Partial<Project>[];
  users?: Partial<User>[];
  serviceAccounts?: Partial<ServiceAccount>[];
  keys?: Partial<RelayKey>[];
  revokedTokens?: string[];
  version?: number;
}

/** A catalogue of callers only. Ids are `<kind>-<name>`; a key's value is `plaintextOf(name)` unless `hash` is given. */
export function callers(given: Callers): Catalog {
  const policies = (given.policies ?? []).map((p) => ({
    id: `policy-${p.name}`,
    name: 'p',
    models: [],
    hostKeys: [],
    rateLimits: [],
    keySelection: 'prioritized' as const,
    includeDeprecated: false,
    enabled: true,
    ...p,
  }));
  const users = (given.users ?? []).map((u) => ({
    id: `user-${u.name}`,
    name: 'u',
    enabled: true,
    tokenVersion: 0,
    ...u,
  }));
  const keys = (given.keys ?? []).map((k) => ({
    id: `key-${k.name}`,
    name: 'k',
    hash: hashKey(plaintextOf(k.name ?? 'k')),
    prefix: 'sk-wr-',
    enabled: true,
    ...k,
  }));
  const byHash = new Map<string, RelayKey>();
  for (const key of keys) {
    byHash.set(key.hash, key);
    if (key.previousHash) byHash.set(key.previousHash, key);
  }
  return {
    version: given.version ?? 1,
    hosts: new Map(),
    hostKeys: new Map(),
    models: new Map(),
    bindings: new Map(),
    policies: byName(policies),
    policiesById: byId(policies),
    rateLimits: new Map(),
    pricings: new Map(),
    teams: byName((given.teams ?? []).map((t) => ({ id: `team-${t.name}`, name: 't', ...t }))),
    projects: byName((given.projects ?? []).map((p) => ({ id: `project-${p.name}`, name: 'p', ...p }))),
    users: byName(users),
    usersById: byId(users),
    serviceAccounts: byName(
      (given.serviceAccounts ?? []).map((s) => ({
        id: `sa-${s.name}`,
        name: 's',
        project: 'none',
        enabled: true,
        ...s,
      })),
    ),
    keys: byName(keys),
    keysById: byId(keys),
    keysByHash: byHash,
    revokedTokens: new Set(given.revokedTokens ?? []),
  };
}

function byName<T extends { name: string }>(all: readonly T[]): Map<string, T> {
  return new Map(all.map((one) => [one.name, one]));
}

function byId<T extends { id: string }>(all: readonly T[]): Map<string, T> {
  return new Map(all.map((one) => [one.id, one]));
}
