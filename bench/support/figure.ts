/** The bound that a figure must reach; both kinds are inclusive. */
export type Target = { atLeast: number } | { atMost: number };

/** One figure of a benchmark, and what to compare it with. */
export interface Figure {
  name: string;
  value: number;
  unit: string;
  comparedWith: string;
  /** A target of "Targets" in docs/spec/architecture.md. Figures without one explain the others. */
  target?: Target;
}

/** Returns true if the figure reaches its target, null if it has no target. */
export function isMet({ value, target }: Figure): boolean | null {
  if (target === undefined) return null;
  return 'atLeast' in target ? value >= target.atLeast : value <= target.atMost;
}

/** Returns the middle value; of an even number the higher of the two in the middle. Throws on an empty list. */
export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

/** Returns the value that `share` (0 to 1) of all values do not exceed. Throws on an empty list. */
export function quantile(values: readonly number[], share: number): number {
  if (values.length === 0) throw new Error('no values');
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!;
}

/** Runs `work` and returns how long it took, in ms. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

/** Returns `12,345.7`: thousands apart, and as many decimals as a figure of that size deserves. */
export function format(value: number): string {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
