import { hash } from 'node:crypto';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { Binding, Catalog, HostKey, RelayKey } from '../model/catalog.ts';
import { HEADER_SECRET } from './documents/fields.ts';
import type { Kind } from './documents/kinds.ts';
import { readRevokedTokens } from './revoked-tokens.sql.ts';
import type { SecretBox } from './secrets/secret-box.ts';
import { readState, type StoredObject } from './state.ts';

type Stored<K extends Kind> = Extract<StoredObject, { kind: K }>;

/**
 * Builds the catalogue that this process works with: defaults set, secrets opened, indexes made. A host key without a
 * usable value has the value null and a warning in the log; it never fails the load. Its variable may be unset or unfit
 * for a header, or another master key may have sealed it.
 */
export async function loadCatalog(
  db: Db,
  env: Readonly<Record<string, string | undefined>>,
  secretBox: SecretBox | null,
  log?: Log,
): Promise<Catalog> {
  const state = await readState(db);
  // Read after the state: this may be newer than the version says, never older.
  const revokedTokens = await readRevokedTokens(db);
  return buildCatalog(state.version, [...state.objects.values()], revokedTokens, (object) => {
    const found = hostKeyValue(object, env, secretBox);
    if ('value' in found) return found.value;
    log?.warn({ hostKey: object.name, reason: found.reason }, 'host key has no value and is not used');
    return null;
  });
}

function buildCatalog(
  version: number,
  objects: readonly StoredObject[],
  revokedTokens: ReadonlySet<string>,
  readValue: (object: Stored<'HostKey'>) => string | null,
): Catalog {
  const of = <K extends Kind>(kind: K) => objects.filter((object): object is Stored<K> => object.kind === kind);
  const byName = <K extends Kind, T extends { name: string }>(kind: K, build: (object: Stored<K>) => T) =>
    new Map(of(kind).map((object) => [object.name, build(object)]));
  const byId = <T extends { id: string }>(map: ReadonlyMap<string, T>) =>
    new Map([...map.values()].map((value) => [value.id, value]));

  const policies = byName('Policy', ({ id, name, spec }) => ({
    ...{ models: [], hostKeys: [], rateLimits: [], keySelection: 'prioritized' as const },
    ...{ includeDeprecated: false, enabled: true },
    ...spec,
    id,
    name,
  }));
  const users = byName('User', ({ id, name, spec, tokenVersion }) => ({
    enabled: true,
    ...spec,
    id,
    name,
    tokenVersion,
  }));
  const keys = new Map(of('Key').flatMap((object) => (object.key ? [[object.name, toRelayKey(object)]] : [])));
  return {
    version,
    hosts: byName('Host', ({ id, name, spec }) => ({ noAuth: false, enabled: true, ...spec, id, name })),
    hostKeys: byName('HostKey', (object) => toHostKey(object, readValue(object))),
    models: byName('Model', ({ id, name, spec }) => ({ aliases: [], snapshots: [], enabled: true, ...spec, id, name })),
    bindings: groupBindings(of('Binding')),
    policies,
    policiesById: byId(policies),
    rateLimits: byName('RateLimit', ({ id, name, spec }) => ({
      id,
      name,
      enabled: spec.enabled ?? true,
      rules: spec.rules.map((rule) => ({ strategy: 'token-bucket' as const, ...rule })),
    })),
    pricings: byName('Pricing', ({ id, name, spec }) => ({ currency: 'USD', enabled: true, ...spec, id, name })),
    teams: byName('Team', ({ id, name }) => ({ id, name })),
    projects: byName('Project', ({ id, name, spec }) => ({ ...spec, id, name })),
    users,
    usersById: byId(users),
    serviceAccounts: byName('ServiceAccount', ({ id, name, spec }) => ({ enabled: true, ...spec, id, name })),
    keys,
    keysById: byId(keys),
    keysByHash: indexByHash([...keys.values()]),
    revokedTokens,
  };
}

function hostKeyValue(
  object: Stored<'HostKey'>,
  env: Readonly<Record<string, string | undefined>>,
  box: SecretBox | null,
): { value: string } | { reason: string } {
  const { valueFrom } = object.spec;
  if (valueFrom.kind === 'env') {
    const value = env[valueFrom.env];
    if (!value) return { reason: `environment variable ${valueFrom.env} is not set` };
    if (!HEADER_SECRET.test(value)) return { reason: `the value of ${valueFrom.env} cannot be sent in a header` };
    return { value };
  }
  if (object.secret === null) return { reason: 'no value is stored' };
  if (box === null) return { reason: 'RELAY_MASTER_KEY is not set' };
  try {
    return { value: box.open(object.id, object.secret).toString() };
  } catch (error) {
    return { reason: reasonOf(error) };
  }
}

function toHostKey({ id, name, spec }: Stored<'HostKey'>, value: string | null): HostKey {
  const { host, policy, enabled = true } = spec;
  const breakerKey = value === null ? '' : hash('sha256', value, 'hex').slice(0, 12);
  return { id, name, host, value, breakerKey, enabled, ...(policy === undefined ? {} : { policy }) };
}

function toRelayKey({ id, name, spec, key }: Stored<'Key'>): RelayKey {
  const { policy, principal, expiresAt, enabled = true } = spec;
  return {
    id,
    name,
    hash: key!.hash,
    prefix: key!.prefix,
    ...(key!.previousHash && key!.graceUntil
      ? { previousHash: key!.previousHash, graceUntil: key!.graceUntil.getTime() }
      : {}),
    ...(policy === undefined ? {} : { policy }),
    ...(principal === undefined ? {} : { principal }),
    ...(expiresAt === undefined ? {} : { expiresAt: Date.parse(expiresAt) }),
    ...(key!.revokedAt ? { revokedAt: key!.revokedAt.getTime() } : {}),
    enabled,
  };
}

function groupBindings(stored: readonly Stored<'Binding'>[]): Map<string, Binding[]> {
  const groups = new Map<string, Binding[]>();
  for (const { id, name, spec } of stored) {
    const binding: Binding = { adapter: 'openai', priority: 0, enabled: true, ...spec, id, name };
    const group = groups.get(binding.model);
    if (group) group.push(binding);
    else groups.set(binding.model, [binding]);
  }
  for (const group of groups.values()) {
    group.sort((a, b) => a.priority - b.priority || (a.name < b.name ? -1 : 1));
  }
  return groups;
}

/** A current hash wins over another key's previous one. The two may be equal if values moved between variables. */
function indexByHash(keys: readonly RelayKey[]): Map<string, RelayKey> {
  const index = new Map<string, RelayKey>();
  for (const key of keys) if (key.previousHash !== undefined) index.set(key.previousHash, key);
  for (const key of keys) index.set(key.hash, key);
  return index;
}
