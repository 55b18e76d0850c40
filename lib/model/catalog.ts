/**
 * The catalogue as the data path sees it: one immutable value, replaced whole when it changes. An item runs from start
 * to end on one of these. Names are unique per kind and never change, so references between kinds are by name.
 */

/** Shapes that a native submit may have ("Shapes of a submit" in docs/spec/native-api.md). */
export const SHAPES = ['openai', 'openai_responses', 'anthropic'] as const;
/**
 * The upstream wire formats of bindings. Embeddings come only through the OpenAI surface ("Shapes and adapters" in
 * docs/spec/gateway-rules.md).
 */
export const ADAPTERS = [...SHAPES, 'openai_embeddings'] as const;
export type Adapter = (typeof ADAPTERS)[number];
/** A batch's shape. It must equal the binding's adapter, with the exceptions of lib/routing/plan.ts. */
export type Shape = Adapter;

export interface Host {
  id: string;
  name: string;
  /** An http(s) URL. A trailing `/v1` is accepted and not doubled. */
  baseURL: string;
  /** Replaces the adapter's path. */
  path?: string;
  /** The upstream takes no credential: one anonymous key without a breaker. */
  noAuth: boolean;
  enabled: boolean;
}

export interface HostKey {
  id: string;
  name: string;
  host: string;
  /** The secret itself, in memory only. Null if the variable of an `env` key is unset: such a key is never drawn. */
  value: string | null;
  /** First 12 hex characters of sha256(value): the scope of breaker state, so that a rotated value starts closed. */
  breakerKey: string;
  /** The tier policy: which models this key may serve, and limits of scope `hostkey`. */
  policy?: string;
  enabled: boolean;
}

export interface ModelSnapshot {
  name: string;
  upstreamName?: string;
}

export interface Model {
  id: string;
  name: string;
  provider: string;
  aliases: readonly string[];
  snapshots: readonly ModelSnapshot[];
  deprecation?: { status: 'active' | 'deprecated' | 'sunset'; sunsetDate?: string; replacement?: string };
  enabled: boolean;
}

export interface Binding {
  id: string;
  name: string;
  model: string;
  host: string;
  adapter: Adapter;
  upstreamName?: string;
  pricing?: string;
  priority: number;
  enabled: boolean;
}

export type KeySelection = 'prioritized' | 'round-robin' | 'least-recently-used';

export interface Policy {
  id: string;
  name: string;
  /** Grant entries as written: `provider`, `provider/model`, `provider@host`, `provider/model@host`, `@host`. */
  models: readonly string[];
  /** Host key names in the order of preference. */
  hostKeys: readonly string[];
  rateLimit?: string;
  rateLimits: readonly { models: readonly string[]; rateLimit: string }[];
  keySelection: KeySelection;
  includeDeprecated: boolean;
  project?: string;
  enabled: boolean;
}

export type Meter =
  | 'requests'
  | 'concurrency'
  | 'tokens'
  | 'tokens.input'
  | 'tokens.output'
  | 'tokens.cache_read'
  | 'tokens.cache_creation'
  | 'tokens.reasoning';

export type Strategy = 'token-bucket' | 'sliding-window' | 'fixed-window' | 'leaky-bucket' | 'session-window';

export interface LimitRule {
  meter: Meter;
  amount: number;
  /** In seconds; absent for `concurrency`. */
  window?: number;
  strategy: Strategy;
}

export interface RateLimit {
  id: string;
  name: string;
  rules: readonly LimitRule[];
  enabled: boolean;
}

export interface Rate {
  /** `tokens.<part>` as in usage events, e.g. `tokens.input`; or `requests`. */
  meter: string;
  unit: 'per_million' | 'per_unit';
  /** In the pricing's currency. */
  amount: number;
  /** The tier applies from this many prompt tokens on. */
  aboveTokens?: number;
}

export interface Pricing {
  id: string;
  name: string;
  currency: string;
  rates: readonly Rate[];
  enabled: boolean;
}

export interface Team {
  id: string;
  name: string;
}

export interface Project {
  id: string;
  name: string;
  team?: string;
  policy?: string;
}

export interface User {
  id: string;
  name: string;
  email?: string;
  team?: string;
  enabled: boolean;
  /** A higher version revokes every token issued before. */
  tokenVersion: number;
}

export interface ServiceAccount {
  id: string;
  name: string;
  project: string;
  policy?: string;
  enabled: boolean;
}

export interface RelayKey {
  id: string;
  name: string;
  /** The sha256 hex of the whole plaintext. */
  hash: string;
  /** The first 14 characters of the plaintext: the only part that may be shown. */
  prefix: string;
  /** The value before the last rotation; it authenticates until `graceUntil` (epoch ms). */
  previousHash?: string;
  graceUntil?: number;
  policy?: string;
  principal?: { kind: 'user' | 'serviceaccount'; name: string };
  /** Epoch milliseconds. */
  expiresAt?: number;
  revokedAt?: number;
  enabled: boolean;
}

/** The maps are keyed by name unless the comment of a field names another key. */
export interface Catalog {
  /** Grows with every change of catalogue, credential or revocation. */
  version: number;
  hosts: ReadonlyMap<string, Host>;
  hostKeys: ReadonlyMap<string, HostKey>;
  models: ReadonlyMap<string, Model>;
  /** Bindings of a model (by model name), enabled or not, sorted by ascending priority, then name. */
  bindings: ReadonlyMap<string, readonly Binding[]>;
  policies: ReadonlyMap<string, Policy>;
  policiesById: ReadonlyMap<string, Policy>;
  rateLimits: ReadonlyMap<string, RateLimit>;
  pricings: ReadonlyMap<string, Pricing>;
  teams: ReadonlyMap<string, Team>;
  projects: ReadonlyMap<string, Project>;
  users: ReadonlyMap<string, User>;
  usersById: ReadonlyMap<string, User>;
  serviceAccounts: ReadonlyMap<string, ServiceAccount>;
  keys: ReadonlyMap<string, RelayKey>;
  keysById: ReadonlyMap<string, RelayKey>;
  /** Keyed by current and by previous hash. */
  keysByHash: ReadonlyMap<string, RelayKey>;
  /** Ids of single tokens that were revoked and have not yet expired. */
  revokedTokens: ReadonlySet<string>;
}
