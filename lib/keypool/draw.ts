import { createHash } from 'node:crypto';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { HostKey, KeySelection, Policy } from '../model/catalog.ts';
import type { RoutePlan } from '../routing/plan.ts';
import { drawLeastRecentlyUsed, drawTurns } from './selection.sql.ts';

/** The draw of an item for a strategy that takes turns; null if the strategy needs no draw. */
export interface Turn {
  /** The position in the rotation; any whole number from 0. */
  index: number;
  /** Only for least-recently-used: key names, the longest unused first. */
  ranking: readonly string[] | null;
}

/**
 * Returns usable keys in the order in which they are tried ("Key selection" in docs/spec/gateway-rules.md): the drawn
 * one, then those after it. `keys` are the usable ones in the policy's order; without a turn that order stays.
 */
export function orderKeys(keys: readonly HostKey[], strategy: KeySelection, turn: Turn | null): readonly HostKey[] {
  if (keys.length < 2 || strategy === 'prioritized' || turn === null) return keys;
  if (turn.ranking === null) return rotate(keys, turn.index);
  const ranking = turn.ranking;
  const ranked = ranking.flatMap((name) => keys.find((key) => key.name === name) ?? []);
  // Keys that were not usable when the claim drew have no rank: they come last.
  const rest = keys.filter((key) => !ranking.includes(key.name));
  return [...rotate(ranked, turn.index), ...rest];
}

function rotate<T>(list: readonly T[], index: number): T[] {
  const from = list.length === 0 ? 0 : index % list.length;
  return [...list.slice(from), ...list.slice(0, from)];
}

/** The items of a claim that draw over the same list. */
interface Draw {
  policy: Policy;
  scope: string;
  keys: readonly HostKey[];
  /** Positions in the claim. */
  items: number[];
}

/**
 * Draws the turns of a claim's items, in order; null for items that need none (`prioritized`, or a single key). All
 * round-robin draws share one query. Least-recently-used has one query for each policy and list. If Postgres does not
 * answer, the turns start at 0: an uneven draw is better than a failed claim.
 */
export async function drawForClaim(
  options: { db: Db; log: Log; usable: (plan: RoutePlan) => readonly HostKey[] },
  plans: readonly RoutePlan[],
): Promise<(Turn | null)[]> {
  const turns: (Turn | null)[] = new Array(plans.length).fill(null);
  const draws = group(plans, options.usable);
  if (draws.length === 0) return turns;
  const rotating = draws.filter(({ policy }) => policy.keySelection === 'round-robin');
  const ranked = draws.filter(({ policy }) => policy.keySelection === 'least-recently-used');
  try {
    const wanted = rotating.map(({ policy, scope, items }) => ({ policyId: policy.id, scope, count: items.length }));
    const first = wanted.length === 0 ? [] : await drawTurns(options.db, wanted);
    for (const [i, draw] of rotating.entries()) assign(turns, draw, first[i] ?? 0, null);
    for (const draw of ranked) {
      const names = draw.keys.map(({ name }) => name);
      const ranking = await drawLeastRecentlyUsed(options.db, draw.policy.id, names, draw.items.length);
      assign(turns, draw, 0, ranking);
    }
  } catch (error) {
    options.log.warn({ err: reasonOf(error) }, 'turns of key selection not drawn');
    for (const draw of draws) assign(turns, draw, 0, null);
  }
  return turns;
}

function group(plans: readonly RoutePlan[], usable: (plan: RoutePlan) => readonly HostKey[]): Draw[] {
  // The same arguments return the same plan object, so a claim of one batch costs one look-up an item.
  const byPlan = new Map<RoutePlan, Draw | null>();
  const byScope = new Map<string, Draw>();
  plans.forEach((plan, at) => {
    let draw = byPlan.get(plan);
    if (draw === undefined) {
      draw = drawOf(plan, usable(plan), byScope);
      byPlan.set(plan, draw);
    }
    draw?.items.push(at);
  });
  return [...byScope.values()];
}

function drawOf(plan: RoutePlan, keys: readonly HostKey[], byScope: Map<string, Draw>): Draw | null {
  const { policy } = plan;
  if (policy.keySelection === 'prioritized' || keys.length < 2) return null;
  // A list has its own counter. If two lists whose items alternate shared one, each would see every second turn.
  const names = keys.map(({ name }) => name).join('\n');
  const scope = createHash('sha256').update(names).digest('hex').slice(0, 24);
  const id = `${policy.id}\n${scope}`;
  const draw = byScope.get(id) ?? { policy, scope, keys, items: [] };
  byScope.set(id, draw);
  return draw;
}

function assign(turns: (Turn | null)[], draw: Draw, first: number, ranking: readonly string[] | null): void {
  draw.items.forEach((at, i) => {
    turns[at] = { index: first + i, ranking };
  });
}
