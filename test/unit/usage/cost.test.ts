import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { PRICING_METERS } from '../../../lib/catalog/documents/kinds-policies.ts';
import type { Pricing, Rate } from '../../../lib/model/catalog.ts';
import { TOKEN_PARTS, type TokenCounts, type TokenPart } from '../../../lib/model/usage-event.ts';
import { price } from '../../../lib/usage/cost.ts';

const pricing = (rates: Rate[], change: Partial<Pricing> = {}): Pricing => ({
  id: '1',
  name: 'p',
  currency: 'USD',
  enabled: true,
  rates,
  ...change,
});
const million = (meter: string, amount: number, aboveTokens?: number): Rate => ({
  meter,
  unit: 'per_million',
  amount,
  ...(aboveTokens === undefined ? {} : { aboveTokens }),
});

/** The rules of docs/usage.md in bigint, word by word: no tiers worked out ahead, no fast path. */
function reference(rates: readonly Rate[], tokens: TokenCounts): bigint | null {
  const n = (part: TokenPart) => BigInt(tokens[part] ?? 0);
  const prompt = n('input') + n('cache_read') + n('cache_creation') + n('cache_creation_5m') + n('cache_creation_1h');
  const rateOf = (meter: string) =>
    rates
      .filter((rate) => rate.meter === meter && BigInt(rate.aboveTokens ?? 0) <= prompt)
      .sort((a, b) => (b.aboveTokens ?? 0) - (a.aboveTokens ?? 0))[0];
  const bill = (rate: Rate, count: bigint) => {
    const r = BigInt(Math.round(rate.amount * 1e9));
    return rate.unit === 'per_unit' ? count * r : count * (r / 1_000_000n) + (count * (r % 1_000_000n)) / 1_000_000n;
  };
  let input = n('input');
  let output = n('output');
  let sum = 0n;
  for (const part of ['cache_read', 'cache_creation', 'cache_creation_5m', 'cache_creation_1h'] as const) {
    const own = rateOf(`tokens.${part}`) ?? (part === 'cache_read' ? undefined : rateOf('tokens.cache_creation'));
    if (own) sum += bill(own, n(part));
    else input += n(part);
  }
  for (const part of [
    'audio_input',
    'reasoning',
    'audio_output',
    'accepted_prediction',
    'rejected_prediction',
  ] as const) {
    const own = rateOf(`tokens.${part}`);
    if (!own) continue;
    sum += bill(own, n(part));
    if (part === 'audio_input') input -= n(part);
    else output -= n(part);
  }
  if (input < 0n || output < 0n) return null;
  const wholes = {
    'tokens.input': input,
    'tokens.output': output,
    requests: 1n,
    'tokens.server_tool_use': n('server_tool_use'),
  };
  for (const [meter, count] of Object.entries(wholes)) {
    const rate = rateOf(meter);
    if (rate) sum += bill(rate, count);
  }
  return sum < 2n ** 63n ? sum : null;
}

const amount = fc.oneof(
  fc.double({ min: 0, max: 100, noNaN: true }),
  fc.double({ min: 0, max: 9_000_000, noNaN: true }),
  fc.integer({ min: 0, max: 10_000 }).map((n) => n / 1000),
  fc.constantFrom(0, 1e-9, 4e-10, 0.000333333, 9_000_000),
);
const aboveTokens = fc.option(fc.oneof(fc.nat(5000), fc.constantFrom(0, 1, 200_000)), { nil: undefined });
const rates = fc
  .array(
    fc.record({
      meter: fc.constantFrom(...PRICING_METERS),
      unit: fc.constantFrom<Rate['unit']>('per_million', 'per_unit'),
      amount,
      aboveTokens,
    }),
    { minLength: 1, maxLength: 20 },
  )
  .map(
    (list): Rate[] =>
      [...new Map(list.map((rate) => [`${rate.meter} ${rate.aboveTokens ?? 0}`, rate])).values()] as Rate[],
  );
const counts = (max: number) =>
  fc.record(Object.fromEntries(TOKEN_PARTS.map((part) => [part, fc.integer({ min: 1, max })])), {
    requiredKeys: [],
  }) as fc.Arbitrary<TokenCounts>;

describe('cost', () => {
  test('every meter that can be priced is a part of usage events', () => {
    expect([...PRICING_METERS]).toEqual(['requests', ...TOKEN_PARTS.map((part) => `tokens.${part}`)]);
  });

  test('is to the nano-dollar what the rules say in bigint', () => {
    const sizes = fc.constantFrom(10, 5000, 1_000_000, 2 ** 32, 2 ** 33, 2 ** 40, 2 ** 49);
    fc.assert(
      fc.property(rates, sizes.chain(counts), (list, tokens) => {
        expect(price(pricing(list), tokens)?.costNanos ?? null).toBe(reference(list, tokens));
      }),
      { numRuns: 5000 },
    );
  });

  test('its breakdown adds up to it', () => {
    fc.assert(
      fc.property(rates, counts(1_000_000), (list, tokens) => {
        const cost = price(pricing(list), tokens);
        fc.pre(cost !== null && cost.costNanos < 2n ** 53n);
        const sum = Object.values(cost!.breakdown).reduce((a, b) => a + BigInt(b), 0n);
        expect(sum).toBe(cost!.costNanos);
      }),
      { numRuns: 1000 },
    );
  });

  test('a tier holds from its number of prompt tokens on, cache included, for the whole count', () => {
    const tiered = pricing([
      million('tokens.input', 1),
      million('tokens.input', 2, 100),
      million('tokens.input', 3, 200),
    ]);
    const cost = (tokens: TokenCounts) => price(tiered, tokens)!.costNanos;
    expect(cost({ input: 99 })).toBe(99_000n);
    expect(cost({ input: 100 })).toBe(200_000n);
    expect(cost({ input: 150, cache_read: 50 })).toBe(600_000n);
    expect(cost({ input: 199, output: 9000 })).toBe(398_000n);
  });

  test('is exact where a double is not', () => {
    const plain = pricing([million('tokens.input', 2.5)]);
    expect(price(plain, { input: 2 ** 51 + 1 })!.costNanos).toBe((2n ** 51n + 1n) * 2500n);
    expect(price(pricing([million('tokens.input', 0.1)]), { input: 3 })!.costNanos).toBe(300n);
  });

  test('what Postgres cannot hold is unpriced', () => {
    const dear = pricing([{ meter: 'tokens.input', unit: 'per_unit', amount: 9_000_000 }]);
    expect(price(dear, { input: 1000 })!.costNanos).toBe(9_000_000_000_000_000_000n);
    expect(price(dear, { input: 1025 })).toBeNull();
  });

  test('no pricing, a disabled one, one without rates and one in another currency are unpriced', () => {
    const some = [million('tokens.input', 1)];
    expect(price(undefined, { input: 1 })).toBeNull();
    expect(price(pricing(some, { enabled: false }), { input: 1 })).toBeNull();
    expect(price(pricing([]), { input: 1 })).toBeNull();
    expect(price(pricing(some, { currency: 'EUR' }), { input: 1 })).toBeNull();
    expect(price(pricing(some), {})).toEqual({ costNanos: 0n, breakdown: {} });
  });

  test('a free model costs 0, which is not unpriced', () => {
    expect(price(pricing([million('tokens.input', 0)]), { input: 5 })).toEqual({
      costNanos: 0n,
      breakdown: { input: 0 },
    });
  });
});
