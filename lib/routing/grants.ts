import type { Model, Policy } from '../model/catalog.ts';
import { slug } from '../model/slug.ts';

/** A grant entry by segment, as slugs. Null is the wildcard that a missing segment means. */
interface Grant {
  provider: string | null;
  model: string | null;
  host: string | null;
}

/** A policy's grants, read once. `entries` is null for a policy without grants, which passes every model. */
export interface Grants {
  entries: readonly Grant[] | null;
  includeDeprecated: boolean;
}

/** Reads a policy's `models`. Entries that apply refuses (`*`, an empty segment) match nothing here. */
export function readGrants(policy: Policy): Grants {
  const entries = policy.models.length === 0 ? null : policy.models.map(readGrant).filter((grant) => grant !== null);
  return { entries, includeDeprecated: policy.includeDeprecated };
}

/**
 * Returns whether the grants reach a model on a host ("Grants" in docs/spec/gateway-rules.md). A deprecated or sunset
 * model needs an entry that names it, or `includeDeprecated`.
 */
export function isGranted(grants: Grants, model: Model, host: string): boolean {
  const needsNaming = isDeprecated(model) && !grants.includeDeprecated;
  if (grants.entries === null) return !needsNaming;
  const [provider, name, hostSlug] = [slug(model.provider), slug(model.name), slug(host)];
  return grants.entries.some(
    (grant) =>
      (grant.provider === null || grant.provider === provider) &&
      (grant.model === null ? !needsNaming : grant.model === name) &&
      (grant.host === null || grant.host === hostSlug),
  );
}

/**
 * The same for a host key's tier policy. One without entries allows every model, also a deprecated one ("Candidate
 * keys" in docs/spec/gateway-rules.md).
 */
export function isAllowedByTier(grants: Grants, model: Model, host: string): boolean {
  return grants.entries === null || isGranted(grants, model, host);
}

function isDeprecated(model: Model): boolean {
  return model.deprecation?.status === 'deprecated' || model.deprecation?.status === 'sunset';
}

/** `provider`, `provider/model`, `provider@host`, `provider/model@host` or `@host`; null for anything else. */
function readGrant(entry: string): Grant | null {
  const at = entry.lastIndexOf('@');
  const name = at === -1 ? entry : entry.slice(0, at);
  const slash = name.indexOf('/');
  const grant: Grant = {
    provider: name === '' ? null : slug(slash === -1 ? name : name.slice(0, slash)),
    model: slash === -1 ? null : slug(name.slice(slash + 1)),
    host: at === -1 ? null : slug(entry.slice(at + 1)),
  };
  const unreadable = grant.provider === '' || grant.model === '' || grant.host === '';
  return unreadable || entry === '' ? null : grant;
}
