import type { Binding, Catalog, Host, HostKey, Model, Policy } from '../../lib/model/catalog.ts';

/**
 * The members of a catalogue that a routing test sets; everything else has the defaults of "Catalogue documents" in
 * docs/spec/native-api.md.
 */
export interface CatalogSketch {
  hosts?: (Partial<Host> & { name: string })[];
  models?: (Partial<Model> & { name: string })[];
  bindings?: (Partial<Binding> & { model: string; host: string })[];
  hostKeys?: (Partial<HostKey> & { name: string; host: string })[];
  policies?: (Partial<Policy> & { name: string })[];
}

/** A catalogue in memory, sorted as the type promises. */
export function catalogOf(sketch: CatalogSketch): Catalog {
  const byName = <T extends { name: string }>(list: T[]) => new Map(list.map((one) => [one.name, one]));
  const bindings = new Map<string, Binding[]>();
  for (const given of sketch.bindings ?? []) {
    const name = given.name ?? `${given.model}-${given.host}`;
    const binding: Binding = { id: name, name, adapter: 'openai', priority: 0, enabled: true, ...given };
    bindings.set(given.model, [...(bindings.get(given.model) ?? []), binding]);
  }
  for (const list of bindings.values()) list.sort((a, b) => a.priority - b.priority || (a.name < b.name ? -1 : 1));
  const policies = byName((sketch.policies ?? [{ name: 'default' }]).map(policyOf));
  return {
    version: 1,
    hosts: byName(
      (sketch.hosts ?? []).map((host) => ({
        id: host.name,
        baseURL: `http://${host.name}.example`,
        noAuth: false,
        enabled: true,
        ...host,
      })),
    ),
    hostKeys: byName((sketch.hostKeys ?? []).map(hostKeyOf)),
    models: byName(
      (sketch.models ?? []).map((model) => ({
        id: model.name,
        provider: 'openai',
        aliases: [],
        snapshots: [],
        enabled: true,
        ...model,
      })),
    ),
    bindings,
    policies,
    policiesById: new Map([...policies.values()].map((policy) => [policy.id, policy])),
    rateLimits: new Map(),
    pricings: new Map(),
    teams: new Map(),
    projects: new Map(),
    users: new Map(),
    usersById: new Map(),
    serviceAccounts: new Map(),
    keys: new Map(),
    keysById: new Map(),
    keysByHash: new Map(),
    revokedTokens: new Set(),
  };
}

/** A host key with a value of its own. */
export function hostKeyOf(given: Partial<HostKey> & { name: string; host: string }): HostKey {
  return { id: given.name, value: `secret-${given.name}`, breakerKey: `bk-${given.name}`, enabled: true, ...given };
}

/** A policy that grants everything and holds no key, unless said otherwise. */
function policyOf(given: Partial<Policy> & { name: string }): Policy {
  return {
    id: `id-${given.name}`,
    models: [],
    hostKeys: [],
    rateLimits: [],
    keySelection: 'prioritized',
    includeDeprecated: false,
    enabled: true,
    ...given,
  };
}
