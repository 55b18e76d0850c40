import type { HostKey, KeySelection } from '../model/catalog.ts';

/** What an item drew for a strategy that takes turns; null where none is needed. */
export interface Turn {
  /** Position in the rotation; any whole number from 0. */
  index: number;
  /** Least-recently-used: key names, the longest unused first. */
  ranking: readonly string[] | null;
}

/**
 * Usable keys in the order in which they are tried (behaviour section 3): the drawn one, then those after it. `keys` are
 * the usable ones in the policy's order; without a turn that order stays.
 */
export function orderKeys(keys: readonly HostKey[], strategy: KeySelection, turn: Turn | null): readonly HostKey[] {
  if (keys.length < 2 || strategy === 'prioritized' || turn === null) return keys;
  if (turn.ranking === null) return rotate(keys, turn.index);
  const ranking = turn.ranking;
  const ranked = ranking.flatMap((name) => keys.find((key) => key.name === name) ?? []);
  // Keys that were not usable when the claim drew have no rank: after the others.
  const rest = keys.filter((key) => !ranking.includes(key.name));
  return [...rotate(ranked, turn.index), ...rest];
}

function rotate<T>(list: readonly T[], index: number): T[] {
  const from = list.length === 0 ? 0 : index % list.length;
  return [...list.slice(from), ...list.slice(0, from)];
}
