import { cutText } from '../base/errors.ts';
import type { Adapter, Binding, Catalog, Host, HostKey, Model, Policy, Shape } from '../model/catalog.ts';
import { type Grants, isAllowedByTier, isGranted, readGrants } from './grants.ts';
import { buildNames, MAX_NAME_LENGTH, type Names, type Resolved, type ResolvedVia, resolveName } from './names.ts';

/**
 * The routing errors of "Routing errors" in docs/spec/gateway-rules.md. `cross_shape` has a text of its own, made of
 * the two adapters.
 */
const ROUTE_ERRORS = {
  model_not_found: 'model not found',
  model_disabled: 'model disabled',
  policy_not_found: 'policy not found',
  policy_disabled: 'policy disabled',
  model_not_allowed: 'model not allowed by policy',
  no_host_binding: 'no enabled host binding for model',
  no_keys: 'no host keys available for this host',
} as const;
export type RouteErrorCode = keyof typeof ROUTE_ERRORS | 'cross_shape';

/** One way to serve an item: a granted binding and the keys that may be drawn for it. */
export interface Candidate {
  binding: Binding;
  host: Host;
  /** The wire format and path of the call: the binding's adapter. It differs from the shape in one exception. */
  adapter: Adapter;
  /** The model's name as the upstream knows it. */
  wireName: string;
  /** In the policy's order, never empty. A `noAuth` host has one anonymous key (see `anonymousKey`). */
  keys: readonly HostKey[];
}

/** The ways that an item may go: candidates in the order in which they are tried. */
export interface RoutePlan {
  kind: 'plan';
  requestedModel: string;
  model: Model;
  resolvedVia: ResolvedVia;
  policy: Policy;
  /** Never empty. */
  candidates: readonly Candidate[];
}

/** The reason why an item can go nowhere. The names that are known are kept for the usage event. */
export interface RouteFailure {
  kind: 'failed';
  code: RouteErrorCode;
  error: string;
  requestedModel: string;
  model: Model | null;
  resolvedVia: ResolvedVia | null;
}

export type Route = RoutePlan | RouteFailure;

export interface RouteRequest {
  /** The item's `model` as the caller wrote it. */
  requestedModel: string;
  shape: Shape;
  /** The batch's policy in this catalogue; undefined if it was deleted. */
  policy: Policy | undefined;
}

/** The routing of one catalogue: its name index and the plans that were made already. */
export interface Routes {
  catalog: Catalog;
  names: Names;
  grants: Map<Policy, Grants>;
  plans: Map<Policy | undefined, Map<Shape, Map<string, Route>>>;
  planCount: number;
}

/** Batches repeat few names thousands of times. A batch of made-up names must not let the memo grow without end. */
const MAX_PLANS = 16_384;

const cache = new WeakMap<Catalog, Routes>();

/** Returns the routing of a catalogue. It is built once for each catalogue and dropped with it. */
export function routesOf(catalog: Catalog): Routes {
  let routes = cache.get(catalog);
  if (!routes) {
    routes = { catalog, names: buildNames(catalog), grants: new Map(), plans: new Map(), planCount: 0 };
    cache.set(catalog, routes);
  }
  return routes;
}

/**
 * Plans an item. The same arguments return the same object, so a WeakMap can keep what is derived from a plan. Never
 * throws.
 */
export function planRoute(routes: Routes, request: RouteRequest): Route {
  const { requestedModel, shape, policy } = request;
  const memo = memoOf(routes, policy, shape);
  const known = memo.get(requestedModel);
  if (known) return known;
  const route = plan(routes, request);
  if (requestedModel.length > MAX_NAME_LENGTH) return route;
  if (routes.planCount++ >= MAX_PLANS) {
    routes.plans.clear();
    routes.planCount = 1;
    memoOf(routes, policy, shape).set(requestedModel, route);
  } else {
    memo.set(requestedModel, route);
  }
  return route;
}

/**
 * Returns the text of a failure as "Item failure texts" in docs/spec/gateway-rules.md has it, without the `batch item:
 * ` before it.
 */
export function routeFailureText(failure: RouteFailure): string {
  if (failure.code === 'cross_shape') return failure.error;
  return `route "${cutText(failure.requestedModel)}": ${failure.error}`;
}

function memoOf(routes: Routes, policy: Policy | undefined, shape: Shape): Map<string, Route> {
  const shapes = routes.plans.get(policy) ?? new Map<Shape, Map<string, Route>>();
  const memo = shapes.get(shape) ?? new Map<string, Route>();
  if (memo.size === 0) routes.plans.set(policy, shapes.set(shape, memo));
  return memo;
}

function plan(routes: Routes, { requestedModel, shape, policy }: RouteRequest): Route {
  const resolved = resolveName(routes.names, requestedModel);
  const fail = (code: RouteErrorCode, error?: string): RouteFailure => ({
    kind: 'failed',
    code,
    error: error ?? ROUTE_ERRORS[code as keyof typeof ROUTE_ERRORS],
    requestedModel,
    model: resolved?.model ?? null,
    resolvedVia: resolved?.via ?? null,
  });
  if (!resolved) return fail('model_not_found');
  if (!resolved.model.enabled) return fail('model_disabled');
  if (!policy) return fail('policy_not_found');
  if (!policy.enabled) return fail('policy_disabled');

  const reachable = reachableBindings(routes.catalog, resolved);
  if (reachable.length === 0) return fail('no_host_binding');
  const granted = (list: readonly Reachable[]) =>
    list.filter(({ host }) => isGranted(grantsOf(routes, policy), resolved.model, host.name));
  const ofShape = bindingsOfShape(reachable, shape);
  if (ofShape.length === 0) {
    const other = granted(reachable)[0];
    if (!other) return fail('model_not_allowed');
    return fail('cross_shape', `cross-shape dispatch not supported (${shape} -> ${other.binding.adapter})`);
  }
  const allowed = granted(ofShape);
  if (allowed.length === 0) return fail('model_not_allowed');
  const candidates = allowed
    .map(({ binding, host }) => ({
      binding,
      host,
      adapter: shape === 'openai_embeddings' ? shape : binding.adapter,
      wireName: binding.upstreamName ?? resolved.wireName,
      keys: candidateKeys(routes, policy, resolved.model, host),
    }))
    .filter((candidate) => candidate.keys.length > 0);
  if (candidates.length === 0) return fail('no_keys');
  return { kind: 'plan', requestedModel, model: resolved.model, resolvedVia: resolved.via, policy, candidates };
}

interface Reachable {
  binding: Binding;
  host: Host;
}

/** The model's enabled bindings whose host exists, is enabled and is not pinned elsewhere; by priority, then name. */
function reachableBindings(catalog: Catalog, { model, pinned }: Resolved): Reachable[] {
  return (catalog.bindings.get(model.name) ?? []).flatMap((binding) => {
    const host = catalog.hosts.get(binding.host);
    const usable = binding.enabled && host?.enabled && (pinned === null || pinned === host.name);
    return usable ? [{ binding, host }] : [];
  });
}

/**
 * Returns the bindings that speak the batch's shape, or else the documented exceptions. Any `openai` binding serves
 * embeddings, by their own path. An `openai_responses` item goes to an `openai` binding of the host named `openai`,
 * where Chat Completions refuses it with its own status.
 */
function bindingsOfShape(reachable: readonly Reachable[], shape: Shape): Reachable[] {
  const same = reachable.filter(({ binding }) => binding.adapter === shape);
  if (same.length > 0) return same;
  const chat = reachable.filter(({ binding }) => binding.adapter === 'openai');
  if (shape === 'openai_embeddings') return chat.map(({ binding, host }) => ({ binding, host: withoutPath(host) }));
  if (shape !== 'openai_responses') return same;
  return chat.filter(({ host }) => host.name === 'openai');
}

/** The `path` of a host for Chat Completions is not that of embeddings: they have their own below its base URL. */
function withoutPath({ path: _, ...host }: Host): Host {
  return host;
}

function candidateKeys(routes: Routes, policy: Policy, model: Model, host: Host): readonly HostKey[] {
  if (host.noAuth) return [anonymousKey(host)];
  return [...new Set(policy.hostKeys)].flatMap((name) => {
    const key = routes.catalog.hostKeys.get(name);
    if (!key?.enabled || key.host !== host.name || key.value === null) return [];
    if (key.policy === undefined) return [key];
    const tier = routes.catalog.policies.get(key.policy);
    return tier?.enabled && isAllowedByTier(grantsOf(routes, tier), model, host.name) ? [key] : [];
  });
}

function grantsOf(routes: Routes, policy: Policy): Grants {
  const grants = routes.grants.get(policy) ?? readGrants(policy);
  routes.grants.set(policy, grants);
  return grants;
}

/** The key of a `noAuth` host: no name, no value, and an empty breaker key, which never opens. */
function anonymousKey(host: Host): HostKey {
  return { id: '', name: '', host: host.name, value: null, breakerKey: '', enabled: true };
}
