import type { Database } from '../db/database.ts';
import { type BucketTable, bucketTable, type ItemClaim, itemColumns, retrying } from './columns.ts';
import { type ReserveRow, reserveBuckets } from './limits.sql.ts';
import type { BucketRule } from './rules.ts';

/** One item that waits to run. Items with the same rules should carry the same array (`policyRules` returns it). */
export interface ReserveRequest extends ItemClaim {
  rules: readonly BucketRule[];
}

/**
 * `atUs` is the time of the decision, in microseconds by the database's clock (0 without rules): a refund needs it. A
 * refusal names the rule with the longest wait of those that refuse, and that wait in whole seconds, at least 1.
 */
export type ReserveVerdict = { ok: true; atUs: number } | { ok: false; rule: BucketRule; retryInSeconds: number };

/** The rules of requests as a set, and how many requests in a row have it: the input of the decision. */
interface Plan {
  table: BucketTable;
  sets: readonly (readonly BucketRule[])[];
  runs: { set: number; requests: ReserveRequest[] }[];
}

const UNLIMITED: ReserveVerdict = { ok: true, atUs: 0 };

/**
 * Decides for the items of one claim, in the order of the requests (idx order), at one instant and in one round trip.
 * Requests without rules cost nothing: without any rule it sends no query. All rules of a request are counted, or none.
 *
 * `holdSeconds` must be longer than an item can run: after it a concurrency row does not count, even if the item's
 * worker was lost and nobody rescued it. Must not run inside another transaction: counts are written without waiting
 * for the disk. Throws the database's error. It is then unknown what was counted; at worst it counted for nothing.
 */
export async function reserve(
  db: Database,
  requests: readonly ReserveRequest[],
  holdSeconds: number,
): Promise<ReserveVerdict[]> {
  const plan = planReserve(requests);
  if (plan.runs.length === 0) return requests.map(() => UNLIMITED);
  const call = { ...reserveColumns(plan), holdUs: Math.ceil(holdSeconds * 1_000_000) };
  const row = await retrying(() => reserveBuckets(db, call));
  return readVerdicts(plan, row, requests);
}

function planReserve(requests: readonly ReserveRequest[]): Plan {
  const setOf = new Map<readonly BucketRule[], number>();
  const runs: Plan['runs'] = [];
  for (const request of requests) {
    if (request.rules.length === 0) continue;
    let set = setOf.get(request.rules);
    if (set === undefined) {
      set = setOf.size + 1;
      setOf.set(request.rules, set);
    }
    const last = runs.at(-1);
    if (last?.set === set) last.requests.push(request);
    else runs.push({ set, requests: [request] });
  }
  const sets = [...setOf.keys()];
  return { table: bucketTable(sets.flat()), sets, runs };
}

function reserveColumns({ table, sets, runs }: Plan) {
  const members: number[] = [];
  const setEnds: number[] = [];
  for (const set of sets) {
    for (const rule of set) members.push(table.positions.get(rule.bucketId)!);
    setEnds.push(members.length);
  }
  const gauges: number[] = [];
  const items: ReserveRequest[] = [];
  const itemRuns: number[] = [];
  const itemPlaces: number[] = [];
  for (const [r, { set, requests }] of runs.entries()) {
    for (const rule of sets[set - 1]!) {
      if (rule.meter !== 'concurrency') continue;
      const gauge = table.positions.get(rule.bucketId)!;
      for (let i = 0; i < requests.length; i++) {
        gauges.push(gauge);
        items.push(requests[i]!);
        itemRuns.push(r + 1);
        itemPlaces.push(i + 1);
      }
    }
  }
  return {
    buckets: table.columns,
    members,
    setEnds,
    runSets: runs.map((run) => run.set),
    runLengths: runs.map((run) => run.requests.length),
    gauges,
    items: itemColumns(items),
    itemRuns,
    itemPlaces,
  };
}

/** Requests without rules stand between the runs: the answer follows the order of the requests, not of the runs. */
function readVerdicts({ table }: Plan, row: ReserveRow, requests: readonly ReserveRequest[]): ReserveVerdict[] {
  const passed: ReserveVerdict = { ok: true, atUs: row.at_us };
  const verdicts: ReserveVerdict[] = [];
  let run = -1;
  let place = 0;
  let refused: ReserveVerdict | undefined;
  let current: readonly BucketRule[] | undefined;
  for (const { rules } of requests) {
    if (rules.length === 0) {
      verdicts.push(UNLIMITED);
      continue;
    }
    if (rules !== current) {
      current = rules;
      run++;
      place = 0;
      refused = undefined;
    }
    place++;
    if (place <= row.passed[run]!) {
      verdicts.push(passed);
      continue;
    }
    refused ??= { ok: false, rule: table.rules[row.refused_by[run]! - 1]!, retryInSeconds: row.retry_s[run]! };
    verdicts.push(refused);
  }
  return verdicts;
}
