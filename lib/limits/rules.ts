import { createHash } from 'node:crypto';
import type { Catalog, HostKey, Meter, Model, Policy, Strategy } from '../model/catalog.ts';
import { uuidOfHex } from '../model/public-id.ts';
import { isGranted, readGrants } from '../routing/grants.ts';

/** Whose bucket it is: the policy's (all its keys share it), or a host key's own, by its tier policy. */
export type LimitScope = 'policy' | 'hostkey';

/** One rule that applies to an item, and the bucket it counts in. */
export interface BucketRule {
  /** UUID text; the same for as long as scope, owner, model, meter, window and strategy are. A new amount keeps it. */
  bucketId: string;
  scope: LimitScope;
  /** Name of the policy, or of the host key. */
  name: string;
  meter: Meter;
  amount: number;
  /** Seconds; 0 for `concurrency`. */
  window: number;
  strategy: Strategy;
}

/** The rules of an item without any: an array to compare with by identity. */
export const NO_RULES: readonly BucketRule[] = [];

interface Owner {
  scope: LimitScope;
  id: string;
  name: string;
}

type PerModel = Map<Model, Map<string, readonly BucketRule[]>>;

// Everything hangs on the catalogue's identity: it is swapped whole, so an entry can never be stale, and goes with it.
const memo = new WeakMap<Catalog, Map<Policy | HostKey, PerModel>>();
const buckets = new WeakMap<Catalog, Map<string, readonly BucketRule[]>>();
const joined = new WeakMap<readonly BucketRule[], WeakMap<readonly BucketRule[], readonly BucketRule[]>>();

/**
 * The rules of the governing policy for a model on a host (the name of the first host on the item's plan): its
 * `rateLimit`, else the first `rateLimits` entry that matches, then with a bucket of the model's own (behaviour section
 * 5). Empty without a limit, or when the RateLimit is disabled. The same array for the same arguments: `reserve` groups
 * by it.
 */
export function policyRules(catalog: Catalog, policy: Policy, model: Model, host: string): readonly BucketRule[] {
  if (!hasLimit(policy)) return NO_RULES;
  const owner: Owner = { scope: 'policy', id: policy.id, name: policy.name };
  return remembered(catalog, policy, model, host, () => readRules(catalog, policy, owner, model, host));
}

/** The rules that a host key's tier policy adds for a model; the buckets are the key's own. Empty without a tier. */
export function hostKeyRules(catalog: Catalog, key: HostKey, model: Model): readonly BucketRule[] {
  const tier = key.policy === undefined ? undefined : catalog.policies.get(key.policy);
  if (tier === undefined || !hasLimit(tier)) return NO_RULES;
  const owner: Owner = { scope: 'hostkey', id: key.id, name: key.name };
  return remembered(catalog, key, model, key.host, () => readRules(catalog, tier, owner, model, key.host));
}

/** Both lists as one, for a single decision over all rules; the same array for the same two. */
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

/** The value of a key, made when it is not there. */
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
 * `model` is empty where all models share one bucket: their items then carry one and the same array, and go through
 * `reserve` as one run.
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
    // Two rules that differ in the amount only are one bucket, and the smaller amount is the one that ever refuses.
    const twin = rules.get(bucketId);
    if (!twin || twin.amount > amount) rules.set(bucketId, { bucketId, ...rule });
  }
  return rules.size === 0 ? NO_RULES : [...rules.values()];
}

/** 128 bits of sha256 in the form of a UUID: what Postgres stores and orders cheaply. */
function uuidOf(parts: readonly string[]): string {
  return uuidOfHex(createHash('sha256').update(JSON.stringify(parts)).digest('hex'));
}

/**
 * Why an item was refused: `rate limit exceeded: requests of policy default, retry in 12s` (behaviour sections 5 and 7;
 * without the `batch item: ` prefix). Whole seconds, at least 1.
 */
export function limitText(rule: Pick<BucketRule, 'meter' | 'scope' | 'name'>, retryInSeconds: number): string {
  return `rate limit exceeded: ${rule.meter} of ${rule.scope} ${rule.name}, retry in ${retryInSeconds}s`;
}
