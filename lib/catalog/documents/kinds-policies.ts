import { z } from 'zod';
import type { KeySelection, Meter, Strategy } from '../../model/catalog.ts';
import { distinct, enabled, grant, name } from './fields.ts';

const KEY_SELECTIONS = ['prioritized', 'round-robin', 'least-recently-used'] as const satisfies readonly KeySelection[];
const METERS = [
  'requests',
  'concurrency',
  'tokens',
  'tokens.input',
  'tokens.output',
  'tokens.cache_read',
  'tokens.cache_creation',
  'tokens.reasoning',
] as const satisfies readonly Meter[];
const STRATEGIES = [
  'token-bucket',
  'sliding-window',
  'fixed-window',
  'leaky-bucket',
  'session-window',
] as const satisfies readonly Strategy[];

/**
 * The meters that can have a price: `requests` and all parts of lib/model/usage-event.ts (a test compares them).
 *
 * @internal Exported for its tests.
 */
export const PRICING_METERS = [
  'requests',
  'tokens.input',
  'tokens.output',
  'tokens.cache_read',
  'tokens.cache_creation',
  'tokens.cache_creation_5m',
  'tokens.cache_creation_1h',
  'tokens.reasoning',
  'tokens.audio_input',
  'tokens.audio_output',
  'tokens.accepted_prediction',
  'tokens.rejected_prediction',
  'tokens.server_tool_use',
] as const;

/** A policy: who may use what, with which keys and under which limits. */
export const policySchema = z
  .strictObject({
    models: distinct(grant, 10_000).optional(),
    hostKeys: distinct(name, 10_000).optional(),
    rateLimit: name.optional(),
    rateLimits: z
      .array(z.strictObject({ models: distinct(grant, 10_000), rateLimit: name }))
      .max(1000, 'must have at most 1000 entries')
      .optional(),
    keySelection: z.enum(KEY_SELECTIONS).optional(),
    includeDeprecated: z.boolean().optional(),
    project: name.optional(),
    enabled,
  })
  .superRefine((spec, ctx) => {
    if (spec.rateLimit !== undefined && spec.rateLimits !== undefined) {
      ctx.addIssue({
        code: 'custom',
        path: ['rateLimits'],
        message: 'cannot stand beside rateLimit: give one of them',
      });
    }
  });

const rule = z
  .strictObject({
    meter: z.enum(METERS),
    amount: z.number().positive('must be greater than 0').max(Number.MAX_SAFE_INTEGER, 'must be at most 2^53-1'),
    window: z
      .int('must be a whole number of seconds')
      .min(1, 'must be at least 1 second')
      .max(316_224_000, 'must be at most 316224000 seconds')
      .optional(),
    strategy: z.enum(STRATEGIES).optional(),
  })
  .superRefine((value, ctx) => {
    const fault = (field: string, message: string) => ctx.addIssue({ code: 'custom', path: [field], message });
    if (value.meter === 'concurrency') {
      // The meter needs neither window nor strategy. A rule that has them is accepted, and they change nothing.
      if (!Number.isInteger(value.amount)) fault('amount', 'must be a whole number for the meter concurrency');
      return;
    }
    if (value.window === undefined) fault('window', 'is required');
    // Tokens are known only after the answer: only windows can be charged then ("Rate limit rules" in
    // docs/spec/gateway-rules.md).
    const windowed = value.strategy === 'sliding-window' || value.strategy === 'fixed-window';
    if (value.meter !== 'requests' && !windowed) {
      fault('strategy', `must be sliding-window or fixed-window for the meter ${value.meter}`);
    }
  });

/** Rules that must all pass. Buckets belong to the policy or host key that refers to this object, not to the object. */
export const rateLimitSchema = z.strictObject({
  rules: z
    .array(rule)
    .max(100, 'must have at most 100 entries')
    .superRefine((rules, ctx) => {
      eachTwice(
        rules,
        (r) => `${r.meter} ${r.window ?? ''} ${r.strategy ?? 'token-bucket'}`,
        (i) =>
          ctx.addIssue({ code: 'custom', path: [i], message: 'has the meter, window and strategy of another rule' }),
      );
    }),
  enabled,
});

const rate = z.strictObject({
  meter: z.enum(PRICING_METERS),
  unit: z.enum(['per_million', 'per_unit']),
  // round(amount x 1e9) must be exact in a double: 9e6 x 1e9 < 2^53.
  amount: z.number().min(0, 'must be at least 0').max(9_000_000, 'must be at most 9000000'),
  aboveTokens: z.int('must be a whole number up to 2^53-1').min(0, 'must be at least 0').optional(),
});

/** Rates by meter and tier. How costs follow from them: "Cost" in docs/spec/gateway-rules.md. */
export const pricingSchema = z.strictObject({
  // Costs are summed as nano-USD: another currency would make every sum wrong.
  currency: z.literal('USD', 'must be USD: costs are accounted in US dollars').optional(),
  rates: z
    .array(rate)
    .max(1000, 'must have at most 1000 entries')
    .superRefine((rates, ctx) => {
      eachTwice(
        rates,
        (r) => `${r.meter} ${r.aboveTokens ?? 0}`,
        (i) => ctx.addIssue({ code: 'custom', path: [i], message: 'has the meter and aboveTokens of another rate' }),
      );
    }),
  enabled,
});

/** Calls `found` with the index of every entry that has the key of an earlier one. */
function eachTwice<T>(values: readonly T[], keyOf: (value: T) => string, found: (index: number) => void): void {
  const seen = new Set<string>();
  for (const [i, value] of values.entries()) {
    const key = keyOf(value);
    if (seen.has(key)) found(i);
    seen.add(key);
  }
}
