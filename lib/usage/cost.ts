import type { Pricing } from '../model/catalog.ts';
import type { TokenCounts } from '../model/usage-event.ts';
import { type Line, type Price, tiersOf } from './rates.ts';

/** The cost of an item. */
export interface Cost {
  /** Integer nano-USD, at most 2^63-1. */
  costNanos: bigint;
  /** Nano-USD by meter without its `tokens.`; the values add up to costNanos (exactly while each is below 2^53). */
  breakdown: Record<string, number>;
}

/** Below this count, `count x (rate mod 1e6)` and its quotient are exact in a double. */
const EXACT_COUNT = 2 ** 32;
/** The largest Postgres bigint. */
const MAX_COST = 2n ** 63n - 1n;

/**
 * The cost of one answered item ("Cost" in docs/spec/gateway-rules.md). Null is unpriced. The reasons: no pricing, a
 * disabled one, one without rates, or another currency than USD (the catalogue refuses those). Or a part with its own rate
 * is larger than its whole, or the sum is beyond 2^63-1. Rules: docs/usage.md, whose examples are tested.
 */
export function price(pricing: Pricing | undefined, tokens: TokenCounts): Cost | null {
  if (pricing === undefined) return null;
  const tiers = tiersOf(pricing);
  if (tiers === null) return null;
  let tier = tiers[0]!;
  if (tiers.length > 1) {
    const prompt = promptTokens(tokens);
    for (const higher of tiers) if (higher.from <= prompt) tier = higher;
  }

  let input = tokens.input ?? 0;
  let output = tokens.output ?? 0;
  for (const part of tier.intoInput) input += tokens[part] ?? 0;
  if (!Number.isSafeInteger(input)) return null;

  const sum: Sum = { small: 0, big: 0n, breakdown: {} };
  for (const line of tier.lines) {
    const count = tokens[line.part] ?? 0;
    if (count === 0) continue;
    if (line.outOf === 'input') input -= count;
    else if (line.outOf === 'output') output -= count;
    charge(sum, line, count);
  }
  if (input < 0 || output < 0) return null;
  if (tier.input !== null && input > 0) charge(sum, tier.input, input);
  if (tier.output !== null && output > 0) charge(sum, tier.output, output);
  if (tier.requests !== null) charge(sum, tier.requests, 1);

  const costNanos = sum.big + BigInt(sum.small);
  return costNanos > MAX_COST ? null : { costNanos, breakdown: sum.breakdown };
}

/** The prompt, cache included: what `aboveTokens` is compared with. */
function promptTokens(tokens: TokenCounts): number {
  return (
    (tokens.input ?? 0) +
    (tokens.cache_read ?? 0) +
    (tokens.cache_creation ?? 0) +
    (tokens.cache_creation_5m ?? 0) +
    (tokens.cache_creation_1h ?? 0)
  );
}

/** Amounts below 2^53 are summed as numbers, which is exact and ten times faster; the others as bigint. */
interface Sum {
  small: number;
  big: bigint;
  breakdown: Record<string, number>;
}

function charge(sum: Sum, { key, price }: Pick<Line, 'key' | 'price'>, count: number): void {
  const fast = price.perMillion ? count * price.whole + Math.floor((count * price.rest) / 1e6) : count * price.rate;
  const total = sum.small + fast;
  if (count <= EXACT_COUNT && total <= Number.MAX_SAFE_INTEGER) {
    sum.small = total;
    sum.breakdown[key] = fast;
    return;
  }
  const amount = exact(price, BigInt(count));
  sum.big += amount;
  sum.breakdown[key] = Number(amount);
}

function exact(price: Price, count: bigint): bigint {
  if (!price.perMillion) return count * BigInt(price.rate);
  return count * BigInt(price.whole) + (count * BigInt(price.rest)) / 1_000_000n;
}
