import type { Pricing, Rate } from '../model/catalog.ts';
import type { TokenPart } from '../model/usage-event.ts';

/** One rate, ready to multiply: integers below 2^53. */
export interface Price {
  perMillion: boolean;
  /** Nano-USD, for a million or for one. */
  rate: number;
  /** `floor(rate / 1e6)` and `rate mod 1e6`: nano-USD of one, and what is left in millionths. */
  whole: number;
  rest: number;
}

/** A meter that is billed on its own. */
export interface Line {
  /** Name in the breakdown. */
  key: string;
  part: TokenPart;
  /** The whole that holds the part's tokens too, so that they are taken out of it. */
  outOf: 'input' | 'output' | null;
  price: Price;
}

/** The rates for prompts of at least `from` tokens. */
export interface Tier {
  from: number;
  input: Pick<Line, 'key' | 'price'> | null;
  output: Pick<Line, 'key' | 'price'> | null;
  requests: Pick<Line, 'key' | 'price'> | null;
  lines: readonly Line[];
  /** Parts of the prompt that have no rate and are billed as input. */
  intoInput: readonly TokenPart[];
}

/** Disjoint from input: without a rate they stay in the prompt and are billed as input. */
const CACHE_PARTS = ['cache_read', 'cache_creation', 'cache_creation_5m', 'cache_creation_1h'] as const;
/** Counted inside their whole: without a rate they simply stay there. */
const INNER_PARTS: readonly [TokenPart, 'input' | 'output'][] = [
  ['audio_input', 'input'],
  ['reasoning', 'output'],
  ['audio_output', 'output'],
  ['accepted_prediction', 'output'],
  ['rejected_prediction', 'output'],
];

const known = new WeakMap<Pricing, readonly Tier[] | null>();

/**
 * The tiers of a pricing, ascending, the first from 0 on; null when it prices nothing (disabled, no rates, not USD).
 * Worked out once for each Pricing object: the catalogue never changes one in place.
 */
export function tiersOf(pricing: Pricing): readonly Tier[] | null {
  let tiers = known.get(pricing);
  if (tiers === undefined) {
    tiers = compile(pricing);
    known.set(pricing, tiers);
  }
  return tiers;
}

function compile({ enabled, currency, rates }: Pricing): Tier[] | null {
  if (!enabled || currency !== 'USD' || rates.length === 0) return null;
  const steps = new Set([0, ...rates.map((rate) => rate.aboveTokens ?? 0)]);
  return [...steps].sort((a, b) => a - b).map((from) => tierFrom(from, rates));
}

function tierFrom(from: number, rates: readonly Rate[]): Tier {
  const at = (meter: string) => priceAt(from, rates, meter);
  const single = (meter: string, key: string) => {
    const price = at(meter);
    return price && { key, price };
  };
  const lines: Line[] = [];
  const intoInput: TokenPart[] = [];
  const written = at('tokens.cache_creation');
  for (const part of CACHE_PARTS) {
    const price = at(`tokens.${part}`) ?? (part === 'cache_read' ? null : written);
    if (price) lines.push({ key: part, part, outOf: null, price });
    else intoInput.push(part);
  }
  for (const [part, outOf] of INNER_PARTS) {
    const price = at(`tokens.${part}`);
    if (price) lines.push({ key: part, part, outOf, price });
  }
  const tools = at('tokens.server_tool_use');
  if (tools) lines.push({ key: 'server_tool_use', part: 'server_tool_use', outOf: null, price: tools });
  return {
    from,
    input: single('tokens.input', 'input'),
    output: single('tokens.output', 'output'),
    requests: single('requests', 'requests'),
    lines,
    intoInput,
  };
}

/** The rate with the largest `aboveTokens` up to `from`. */
function priceAt(from: number, rates: readonly Rate[], meter: string): Price | null {
  let best: Rate | null = null;
  for (const rate of rates) {
    const above = rate.aboveTokens ?? 0;
    if (rate.meter === meter && above <= from && (best === null || above >= (best.aboveTokens ?? 0))) best = rate;
  }
  if (best === null) return null;
  const rate = Math.round(best.amount * 1e9);
  const rest = rate % 1e6;
  return { perMillion: best.unit === 'per_million', rate, whole: (rate - rest) / 1e6, rest };
}
