import { createHash } from 'node:crypto';
import type { Catalog, HostKey, Meter, Model, Policy, Strategy } from '../model/catalog.ts';
import { uuidOfHex } from '../model/public-id.ts';
import { isGranted, readGrants } from '../routing/grants.ts';

/** The owner of a bucket: the policy (all its keys share it), or a host key by its tier policy. */
export type LimitScope = 'policy' | 'hostkey';

/** One rule that applies to an item, and the bucket it counts in. */
export interface BucketRule {
  /** A UUID text; it changes with scope, owner, model, meter, window or strategy. A new amount keeps it. */
  bucketId: string;
  scope: LimitScope;
  /** The name of the policy, or of the host key. */
  name: string;
  meter: Meter;
  amount: number;
  /** In seconds; 0 for `concurrency`. */
  window: number;
  strategy: Strategy;
}

/** The rules of an item that has no rules: an array to compare with by identity. */
const NO_RULES: readonly BucketRule[] = [];

interface Owner {
  scope: LimitScope;
  id: string;
  name: string;
}

type PerModel = Map<Model, Map<string, readonly BucketRule[]>>;

// Keyed by the catalogue's identity: a catalogue is replaced whole, so an entry is never stale and is dropped with it.
const memo = new WeakMap<Catalog, Map<Policy | HostKey, PerModel>>();
const buckets = new WeakMap<Catalog, Map<string, readonly BucketRule[]>>();
const joined = new WeakMap<readonly BucketRule[], WeakMap<readonly BucketRule[], readonly BucketRule[]>>();

/**
 * Returns the rules of the governing policy for a model on a host (the first host on the item's plan). They are those
 * of its `rateLimit`, else of the first `rateLimits` entry that matches, which has a bucket for each model ("Rate limit
 * rules" in docs/spec/gateway-rules.md). Empty without a limit, or if the RateLimit is disabled. The same arguments
 * return the same array: `reserve` groups by it.
 */
export function policyRules(catalog: Catalog, policy: Policy, model: Model, host: string): readonly BucketRule[] {
  if (!hasLimit(policy)) return NO_RULES;
  const owner: Owner = { scope: 'policy', id: policy.id, name: policy.name };
  return remembered(catalog, policy, model, host, () => readRules(catalog, policy, owner, model, host));
}

/** Returns the rules of a host key's tier policy for a model. The buckets are the key's own. Empty without a tier. */
export function hostKeyRules(catalog: Catalog, key: HostKey, model: Model): readonly BucketRule[] {
  const tier = key.policy === undefined ? undefined : catalog.policies.get(key.policy);
  if (tier === undefined || !hasLimit(tier)) return NO_RULES;
  const owner: Owner = { scope: 'hostkey', id: key.id, name: key.name };
  return remembered(catalog, key, model, key.host, () => readRules(catalog, tier, owner, model, key.host));
}

/** Joins both lists for a single decision over all rules. The same two lists return the same array. */
export function joinRules(first: readonly BucketRule[], second: readonly BucketRule[]): readonly BucketRule[] {
  if (second.length === 0) return first;
  if (first.length === 0) return second;
  const inner = within(joined, first, () => new WeakMap<readonly BucketRule[], readonly BucketRule[]>());
  return within(inner, second, () => [...first, ...second]);
}

function hasLimit(policy: Policy): boolean {
  return policy.rateLimit !== undefined || policy.rateLimits.length > 0;
}

function remembered(
  catalog: Catalog,
  of: Policy | HostKey,
  model: Model,
  host: string,
  read: () => readonly BucketRule[],
): readonly BucketRule[] {
  const models = within(
    within(memo, catalog, () => new Map<Policy | HostKey, PerModel>()),
    of,
    () => new Map() as PerModel,
  );
  const hosts = within(models, model, () => new Map<string, readonly BucketRule[]>());
  return within(hosts, host, read);
}

interface Lookup<K, V> {
  get(key: K): V | undefined;
  set(key: K, value: V): unknown;
}

/** Returns the value of a key, and makes it if it is missing. */
function within<K, V>(map: Lookup<K, V>, key: K, make: () => V): V {
  const known = map.get(key);
  if (known !== undefined) return known;
  const made = make();
  map.set(key, made);
  return made;
}

function readRules(catalog: Catalog, policy: Policy, owner: Owner, model: Model, host: string): readonly BucketRule[] {
  if (policy.rateLimit !== undefined) return bucketRules(catalog, policy.rateLimit, owner, '');
  const entry = policy.rateLimits.find(({ models }) =>
    // A limit on a whole provider holds for its deprecated models too: they need no naming here.
    isGranted(readGrants({ ...policy, models, includeDeprecated: true }), model, host),
  );
  return entry ? bucketRules(catalog, entry.rateLimit, owner, model.name) : NO_RULES;
}

/**
 * `model` is empty where all models share one bucket: then their items carry the same array, and `reserve` treats them
 * as one run.
 */
function bucketRules(catalog: Catalog, rateLimit: string, owner: Owner, model: string): readonly BucketRule[] {
  const known = within(buckets, catalog, () => new Map<string, readonly BucketRule[]>());
  const key = JSON.stringify([owner.scope, owner.id, rateLimit, model]);
  return within(known, key, () => readBucketRules(catalog, rateLimit, owner, model));
}

function readBucketRules(catalog: Catalog, rateLimit: string, owner: Owner, model: string): readonly BucketRule[] {
  const limit = catalog.rateLimits.get(rateLimit);
  if (!limit?.enabled) return NO_RULES;
  const rules = new Map<string, BucketRule>();
  for (const { meter, amount, window, strategy } of limit.rules) {
    const rule = { scope: owner.scope, name: owner.name, meter, amount, window: 0, strategy };
    if (meter !== 'concurrency') rule.window = window ?? 1;
    const kind = meter === 'concurrency' ? meter : `${meter}/${rule.window}/${strategy}`;
    const bucketId = uuidOf([owner.scope, owner.id, model, kind]);
    // Two rules that differ only in the amount are one bucket, and only the smaller amount ever refuses.
    const twin = rules.get(bucketId);
    if (!twin || twin.amount > amount) rules.set(bucketId, { bucketId, ...rule });
  }
  return rules.size === 0 ? NO_RULES : [...rules.values()];
}

/** 128 bits of sha256 in the form of a UUID, which Postgres stores and orders cheaply. */
function uuidOf(parts: readonly string[]): string {
  return uuidOfHex(createHash('sha256').update(JSON.stringify(parts)).digest('hex'));
}

/**
 * Returns the reason of a refusal: `rate limit exceeded: requests of policy default, retry in 12s` ("Reservation,
 * charge and refund" in docs/spec/gateway-rules.md and "Item failure texts" in docs/spec/gateway-rules.md; without the
 * `batch item: ` prefix). Whole seconds, at least 1.
 */
export function limitText(rule: Pick<BucketRule, 'meter' | 'scope' | 'name'>, retryInSeconds: number): string {
  return `rate limit exceeded: ${rule.meter} of ${rule.scope} ${rule.name}, retry in ${retryInSeconds}s`;
}

/** The same for the owner of an item that waits: names of host keys are the administrator's. */
export function limitWaitText({ meter, scope, name }: Pick<BucketRule, 'meter' | 'scope' | 'name'>): string {
  return `rate limit exceeded: ${meter} of ${scope === 'hostkey' ? 'a host key' : `${scope} ${name}`}`;
}
