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
