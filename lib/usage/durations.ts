/** Milliseconds that sent events took; all null when none was sent. `avg` is rounded to microseconds. */
export type Durations = Record<'avg' | 'p50' | 'p95' | 'p99' | 'max', number | null>;

/** How many times more counters than durations are worth to save a sort. */
const COUNTERS_PER_DURATION = 16;

/**
 * Average, percentiles and maximum of durations given as four bytes each, big-endian, in any order, not negative. A
 * percentile is the smallest of them that at least that share of all does not exceed (Postgres' percentile_disc).
 */
export function durationsOf(packed: Uint8Array | null): Durations {
  const n = packed === null ? 0 : packed.byteLength / 4;
  if (packed === null || n === 0) return { avg: null, p50: null, p95: null, p99: null, max: null };
  const values = new Int32Array(n);
  const view = new DataView(packed.buffer, packed.byteOffset, packed.byteLength);
  let sum = 0;
  let max = 0;
  for (let i = 0; i < n; i++) {
    const value = view.getInt32(i * 4);
    values[i] = value;
    sum += value;
    if (value > max) max = value;
  }
  const ranks = [0.5, 0.95, 0.99].map((share) => Math.ceil(share * n));
  const [p50, p95, p99] = max < n * COUNTERS_PER_DURATION ? counted(values, max, ranks) : sorted(values, ranks);
  return { avg: Math.round((sum * 1000) / n) / 1000, p50: p50!, p95: p95!, p99: p99!, max };
}

/** The values of ascending ranks, counted from 1. A million takes 5 ms, sorted 70: the event loop waits for it. */
function counted(values: Int32Array, max: number, ranks: readonly number[]): number[] {
  const counts = new Uint32Array(max + 1);
  for (let i = 0; i < values.length; i++) counts[values[i]!]!++;
  let value = 0;
  let upto = counts[0]!;
  return ranks.map((rank) => {
    while (upto < rank) upto += counts[++value]!;
    return value;
  });
}

function sorted(values: Int32Array, ranks: readonly number[]): number[] {
  values.sort();
  return ranks.map((rank) => values[rank - 1]!);
}

/**
 * Percentiles of a histogram `[value, count, value, count, ...]` given as JSON, values distinct and in any order: the
 * smallest value that at least that share of all counts does not exceed (Postgres' percentile_disc). Null without counts.
 */
export function percentiles(histogram: string, shares: readonly number[]): (number | null)[] {
  const flat = JSON.parse(histogram) as number[];
  const counts = new Map<number, number>();
  let total = 0;
  for (let i = 0; i < flat.length; i += 2) {
    counts.set(flat[i]!, flat[i + 1]!);
    total += flat[i + 1]!;
  }
  const values = Float64Array.from(counts.keys()).sort();
  return shares.map((share) => {
    let upto = 0;
    for (const value of values) {
      upto += counts.get(value)!;
      if (upto >= share * total) return value;
    }
    return null;
  });
}
