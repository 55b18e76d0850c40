import type { z } from 'zod';
import { keySchema, projectSchema, serviceAccountSchema, teamSchema, userSchema } from './kinds-callers.ts';
import { bindingSchema, hostKeySchema, hostSchema, modelSchema } from './kinds-hosts.ts';
import { policySchema, pricingSchema, rateLimitSchema } from './kinds-policies.ts';

/** Every kind of the catalogue with the schema of its `spec`. YAML and HTTP use the same schemas. */
export const SPECS = {
  Host: hostSchema,
  HostKey: hostKeySchema,
  Model: modelSchema,
  Binding: bindingSchema,
  Policy: policySchema,
  RateLimit: rateLimitSchema,
  Pricing: pricingSchema,
  Team: teamSchema,
  Project: projectSchema,
  User: userSchema,
  ServiceAccount: serviceAccountSchema,
  Key: keySchema,
} as const;

/** The name of a kind, as in `kind:`. */
export type Kind = keyof typeof SPECS;
export type SpecOf<K extends Kind> = z.infer<(typeof SPECS)[K]>;

/** All kinds, in the order in which they are listed and exported. */
export const KINDS = Object.keys(SPECS) as readonly Kind[];

/**
 * The plural of each kind: its collection in the control API.
 *
 * @internal Exported for its tests.
 */
export const PLURALS = {
  Host: 'hosts',
  HostKey: 'host-keys',
  Model: 'models',
  Binding: 'bindings',
  Policy: 'policies',
  RateLimit: 'rate-limits',
  Pricing: 'pricings',
  Team: 'teams',
  Project: 'projects',
  User: 'users',
  ServiceAccount: 'service-accounts',
  Key: 'keys',
} as const satisfies Record<Kind, string>;

/** Returns the kind of a plural, or null. */
export function kindOfPlural(plural: string): Kind | null {
  return KINDS.find((kind) => PLURALS[kind] === plural) ?? null;
}

/** True for the name of a kind, but not for an inherited name such as `constructor`. */
export function isKind(value: unknown): value is Kind {
  return typeof value === 'string' && Object.hasOwn(SPECS, value);
}
