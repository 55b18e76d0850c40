import type { Kind, SpecOf } from './kinds.ts';

/** A name in a document that must be an object of `kind`. */
export interface Reference {
  field: string;
  kind: Kind;
  name: string;
}

/** The view of an object that this module needs: enough to find its references. */
export interface Referrer {
  kind: Kind;
  name: string;
  spec: unknown;
}

/**
 * Returns everything that an object refers to. Grants and `deprecation.replacement` do not count: grants match by
 * provider, model and host, whether these exist yet or not (see `hintsOf`).
 */
export function referencesOf(object: Referrer): Reference[] {
  const found: Reference[] = [];
  const add = (field: string, kind: Kind, name: string | undefined) => {
    if (name !== undefined) found.push({ field: `spec.${field}`, kind, name });
  };
  EACH[object.kind]?.(object.spec as never, add);
  return found;
}

type Add = (field: string, kind: Kind, name: string | undefined) => void;

const EACH: { [K in Kind]?: (spec: SpecOf<K>, add: Add) => void } = {
  HostKey(spec, add) {
    add('host', 'Host', spec.host);
    add('policy', 'Policy', spec.policy);
  },
  Binding(spec, add) {
    add('model', 'Model', spec.model);
    add('host', 'Host', spec.host);
    add('pricing', 'Pricing', spec.pricing);
  },
  Policy(spec, add) {
    for (const [i, name] of (spec.hostKeys ?? []).entries()) add(`hostKeys[${i}]`, 'HostKey', name);
    add('rateLimit', 'RateLimit', spec.rateLimit);
    for (const [i, entry] of (spec.rateLimits ?? []).entries()) {
      add(`rateLimits[${i}].rateLimit`, 'RateLimit', entry.rateLimit);
    }
    add('project', 'Project', spec.project);
  },
  Project(spec, add) {
    add('team', 'Team', spec.team);
    add('policy', 'Policy', spec.policy);
  },
  User(spec, add) {
    add('team', 'Team', spec.team);
  },
  ServiceAccount(spec, add) {
    add('project', 'Project', spec.project);
    add('policy', 'Policy', spec.policy);
  },
  Key(spec, add) {
    add('policy', 'Policy', spec.policy);
    add('principal.name', spec.principal?.kind === 'user' ? 'User' : 'ServiceAccount', spec.principal?.name);
  },
};

/** Returns the objects that refer to one object: a refused delete lists them. */
export function referrersOf(target: { kind: Kind; name: string }, objects: Iterable<Referrer>): Referrer[] {
  return [...objects].filter((object) =>
    referencesOf(object).some((ref) => ref.kind === target.kind && ref.name === target.name),
  );
}
