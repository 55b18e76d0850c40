import { cutText } from '../../base/errors.ts';
import type { KeyPool } from '../../keypool/pool.ts';
import type { ReserveRequest, ReserveVerdict } from '../../limits/reserve.ts';
import { type BucketRule, hostKeyRules, joinRules, limitText, limitWaitText, policyRules } from '../../limits/rules.ts';
import type { Refund } from '../../limits/settle.ts';
import type { ClaimedItem, Wait } from '../../model/batch.ts';
import type { HostKey } from '../../model/catalog.ts';
import type { Candidate } from '../../routing/plan.ts';
import type { Loaded } from '../load.ts';
import { pauseOrFail } from './conclude.ts';
import type { Judge, Judged, PreparedItem } from './judge.ts';
import { NO_ROUTE, type Outcome, refused, released } from './outcome.ts';

/** Limits as the worker uses them. */
export interface Limits {
  reserve(requests: readonly ReserveRequest[]): Promise<ReserveVerdict[]>;
  /** Returns reservations in the background. */
  refund(refunds: readonly Refund[]): void;
}

export interface PrepareDeps {
  judge: Judge;
  pool: KeyPool;
  limits: Limits;
  itemTimeoutMs: number;
}

type Result = { ready: PreparedItem } | { item: ClaimedItem; outcome: Outcome };

/**
 * Waits between tries to read an input; the fifth failure, 65 s after the first, is final ("Transient reads" in
 * docs/spec/engine-guarantees.md).
 */
const LOAD_RETRY_MS = [2000, 8000, 20_000, 35_000];

/**
 * Everything before the slot, for all items of a claim at once: one read of breakers at most, one draw of turns, one
 * reservation. Results are in the order of the items.
 */
export async function prepareItems(deps: PrepareDeps, loaded: readonly Loaded[]): Promise<Result[]> {
  const results = await judgeEach(deps.judge, loaded);
  if (!results.some((one) => 'plan' in one)) return results as Result[];

  await deps.pool.ensureFresh();
  // An item that would find every breaker open waits without a reservation: it would count against items that can run.
  for (const [i, one] of results.entries()) {
    if (!('plan' in one)) continue;
    const { inMs } = deps.pool.reopening(one.plan, one.item.batch.owner);
    if (inMs === null || inMs > 0) results[i] = { item: one.item, outcome: pauseOrFail(deps, one) };
  }
  const judged = results.filter((one): one is Judged => 'plan' in one);
  if (judged.length === 0) return results as Result[];
  const turns = await deps.pool.drawTurns(judged.map(({ plan }) => plan));
  const ready = new Map<ClaimedItem, PreparedItem>();
  for (const [i, one] of judged.entries()) ready.set(one.item, { ...one, turn: turns[i]!, reserved: null });
  const refusals = await reserveAhead(deps, [...ready.values()]);
  return results.map((one): Result => {
    if (!('plan' in one)) return one;
    const refusal = refusals.get(one.item);
    return refusal ? { item: one.item, outcome: refusal } : { ready: ready.get(one.item)! };
  });
}

async function judgeEach(judge: Judge, loaded: readonly Loaded[]): Promise<(Result | Judged)[]> {
  const results: (Result | Judged)[] = [];
  for (const one of loaded) {
    if ('failure' in one) {
      results.push({ item: one.item, outcome: loadFailure(one.item, one.failure) });
      continue;
    }
    const made = judge(one.item, one.body);
    // Nearly all are judged at once, and waiting for each would cost every one of them.
    const verdict = made instanceof Promise ? await made : made;
    results.push('judged' in verdict ? verdict.judged : { item: one.item, outcome: verdict.outcome });
  }
  return results;
}

function loadFailure(item: ClaimedItem, reason: string): Outcome {
  const delay = LOAD_RETRY_MS[item.loadFailures];
  if (delay === undefined) return refused(item, 'internal', `load input: ${reason}`);
  return released(item, delay, { loadFailed: true, wait: { reason: 'retry_pause', text: `load input: ${reason}` } });
}

/** Reserves what can be reserved before the slot; sets `reserved`, returns the refused ones. */
async function reserveAhead(deps: PrepareDeps, entries: readonly PreparedItem[]): Promise<Map<ClaimedItem, Outcome>> {
  const wanting = entries.filter((entry) => {
    const rules = rulesFor(entry, null);
    return !rules.some(isConcurrency) && !tiersWithConcurrency(entry);
  });
  return reserveEach(deps, wanting);
}

/**
 * Reserves the limits of items that get their slots now. A key whose tier is spent is skipped for the next one. When a
 * policy's rule refuses, or every key's tier is spent, the item is discarded, or waits if its batch asks for it.
 */
export async function reserveEach(
  deps: PrepareDeps,
  entries: readonly PreparedItem[],
): Promise<Map<ClaimedItem, Outcome>> {
  const refusals = new Map<ClaimedItem, Outcome>();
  let open = entries.map((entry) => ({ entry, keys: drawable(deps.pool, entry), at: 0 }));
  while (open.length > 0) {
    const requests = open.map(({ entry, keys, at }) => request(entry, rulesFor(entry, keys[at] ?? null)));
    const verdicts = await deps.limits.reserve(requests);
    open = open.filter((one, i) => {
      const { entry, keys } = one;
      const verdict = verdicts[i]!;
      if (verdict.ok) {
        entry.reserved = { ...requests[i]!, atUs: verdict.atUs, key: keys[one.at] ?? null };
        return false;
      }
      if (verdict.rule.scope === 'hostkey' && ++one.at < keys.length) return true;
      refusals.set(entry.item, limitRefusal(entry, verdict));
      return false;
    });
  }
  return refusals;
}

/** The outcome of a refused reservation. */
export function limitRefusal(entry: Judged, verdict: Extract<ReserveVerdict, { ok: false }>): Outcome {
  const { item, plan } = entry;
  const { rule, retryInSeconds } = verdict;
  if (item.batch.onLimit === 'wait') {
    const hostKey = rule.scope === 'hostkey' ? rule.name : null;
    const wait: Wait = { reason: 'rate_limit', text: limitWaitText(rule), hostKey };
    return released(item, retryInSeconds * 1000, { wait });
  }
  const route = {
    ...NO_ROUTE,
    requestedModel: cutText(plan.requestedModel),
    model: plan.model.name,
    provider: plan.model.provider,
    resolvedVia: plan.resolvedVia,
  };
  return refused(item, 'rate_limited', limitText(rule, retryInSeconds), route);
}

/** All rules of an item: its policy's, and the tier's of the key it would be sent with. */
function rulesFor(entry: Judged, key: HostKey | null): readonly BucketRule[] {
  const { catalog, plan } = entry;
  const own = policyRules(catalog, plan.policy, plan.model, plan.candidates[0]!.host.name);
  return key === null ? own : joinRules(own, hostKeyRules(catalog, key, plan.model));
}

function request(entry: PreparedItem, rules: readonly BucketRule[]): ReserveRequest {
  const { item } = entry;
  return { batchId: item.batch.id, idx: item.idx, claimNo: item.claimNo, rules };
}

/** Keys in the order in which they would be tried, over all candidates. */
function drawable(pool: KeyPool, { item, plan, turn }: PreparedItem): HostKey[] {
  return plan.candidates.flatMap((candidate: Candidate) => [...pool.order(candidate, plan, turn, item.batch.owner)]);
}

function tiersWithConcurrency({ catalog, plan }: PreparedItem): boolean {
  return plan.candidates.some(({ keys }) =>
    keys.some((key) => hostKeyRules(catalog, key, plan.model).some(isConcurrency)),
  );
}

function isConcurrency(rule: BucketRule): boolean {
  return rule.meter === 'concurrency';
}
