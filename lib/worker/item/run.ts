import type { Clock } from '../../base/clock.ts';
import { inTurns } from '../../base/turns.ts';
import type { KeyPool } from '../../keypool/pool.ts';
import { hostKeyRules } from '../../limits/rules.ts';
import type { Refund } from '../../limits/settle.ts';
import { FAILED_ON_TWO } from '../../model/batch.ts';
import type { Catalog, HostKey } from '../../model/catalog.ts';
import type { Candidate } from '../../routing/plan.ts';
import { nextBinding, nextKey } from '../../upstream/attempt-policy.ts';
import type { CallResult, UpstreamClient } from '../../upstream/call-result.ts';
import { callTarget } from '../../upstream/call-target.ts';
import { replaceModel } from '../../upstream/item-body.ts';
import type { Successes } from '../../usage/successes.ts';
import { conclude, mayEndByRounds, type Run, tellsKey } from './conclude.ts';
import type { Judge, PreparedItem } from './judge.ts';
import { type Outcome, released } from './outcome.ts';
import { type Limits, limitRefusal } from './prepare.ts';

/**
 * Upstream attempts of one run of an item, over all keys and hosts ("Walk of the bindings" in
 * docs/spec/gateway-rules.md).
 */
const MAX_CALLS = 3;
/** An item whose limits could not be asked for looks again after this long. */
const RETRY_MS = 1000;
const NO_ANSWER = { reason: 'retry_pause', text: 'the database did not answer' } as const;

export interface RunDeps {
  client: UpstreamClient;
  pool: KeyPool;
  limits: Limits;
  judge: Judge;
  clock: Clock;
  catalog(): Catalog;
  /** Shared time, epoch ms. */
  nowMs(): number;
  itemTimeoutMs: number;
  observe(host: string, result: CallResult): void;
  successes: Successes;
  /** Reserves an item whose limits wait for the slot; returns its outcome when they refuse it. */
  reserveNow(entry: PreparedItem): Promise<Outcome | null>;
}

/**
 * Runs one item that has a slot: draws keys, calls upstreams, and turns the last answer into an outcome. At most three
 * calls, on to the next key and then to the next granted binding while failures are retryable; all inside the item's time
 * limit. Never throws for anything an upstream does.
 */
export async function runItem(deps: RunDeps, prepared: PreparedItem, signal: AbortSignal): Promise<Outcome> {
  let entry = prepared;
  // An item is judged by what holds as it runs: it may have waited for its slot under an older catalogue.
  if (entry.catalog !== deps.catalog() || deps.nowMs() >= entry.validUntilMs) {
    const verdict = await deps.judge(entry.item, entry.body);
    if ('outcome' in verdict) {
      if (entry.reserved) deps.limits.refund([entry.reserved]);
      return verdict.outcome;
    }
    // Other rules may hold now, so what was reserved under the old ones is given back.
    if (entry.reserved) deps.limits.refund([entry.reserved]);
    entry = { ...entry, ...verdict.judged, reserved: null };
  }
  if (entry.reserved === null) {
    try {
      const refusal = await deps.reserveNow(entry);
      if (refusal) return refusal;
    } catch {
      return released(entry.item, RETRY_MS, { wait: NO_ANSWER }); // no fault of the item
    }
  }
  const run: Run = {
    entry,
    calls: 0,
    dialled: false,
    first: null,
    last: null,
    tellsKey: false,
    probeRefused: false,
    failedKey: entry.item.failedKey,
    othersSucceed: false,
    deadline: deps.clock.monotonic() + deps.itemTimeoutMs,
    refusal: null,
    charged: entry.reserved === null ? [] : [...entry.reserved.rules],
  };
  for (const candidate of entry.plan.candidates) {
    if (await tryCandidate(deps, run, candidate, signal)) break;
  }
  if (!run.dialled && entry.reserved) deps.limits.refund([entry.reserved]);
  let outcome: Outcome | null = null;
  if (run.last !== null && run.last.result.class !== 'success') {
    run.tellsKey = await inTurns(tellsKey(run), run.last.result.body?.length ?? 0);
  }
  if (mayEndByRounds(run)) run.othersSucceed = await othersSucceed(deps, run);
  try {
    outcome = conclude({ ...deps, aborted: signal.aborted }, run);
    return outcome;
  } finally {
    const kept = outcome?.kind === 'final' && outcome.response !== null;
    if (run.last && !kept) deps.client.release(run.last.result.body);
  }
}

/** Tries the usable keys of one binding in order; true when the item has its outcome. */
async function tryCandidate(deps: RunDeps, run: Run, candidate: Candidate, signal: AbortSignal): Promise<boolean> {
  const { item, plan, turn } = run.entry;
  const { id: batchId, owner } = item.batch;
  const model = plan.model.name;
  for (const key of deps.pool.order(candidate, plan, turn, owner)) {
    if (run.calls >= MAX_CALLS || signal.aborted || deps.clock.monotonic() >= run.deadline) return true;
    const health = deps.pool.health(key, model, owner);
    if (health !== 'closed' && health !== 'half_open') continue;
    const probe = health === 'half_open' ? await deps.pool.tryProbe(key, model, owner) : null;
    if (health === 'half_open' && probe === null) continue;
    const tier = await reserveTier(deps, run, key);
    if (tier === null) {
      if (probe !== null) deps.pool.releaseProbe(key, model, probe);
      continue;
    }
    deps.pool.calling(key, model, batchId);
    const result = await call(deps, run, candidate, key, signal);
    if (result.class === 'unreachable') deps.limits.refund(tier);
    else run.charged.push(...tier.flatMap(({ rules }) => rules));
    const suspect = run.failedKey === FAILED_ON_TWO;
    deps.pool.report(key, model, { batchId, idx: item.idx, owner, suspect }, result, probe);
    noteFailure(run, key, result, probe !== null);
    deps.observe(candidate.host.name, result);
    run.first ??= result;
    if (run.last) deps.client.release(run.last.result.body);
    run.last = { result, candidate, key };
    run.calls++;
    if (result.class !== 'unreachable') run.dialled = true;
    if (nextKey(result.class)) continue;
    return !nextBinding(result.class);
  }
  return false;
}

/** While the database does not answer, the item continues. */
async function othersSucceed(deps: RunDeps, { entry }: Run): Promise<boolean> {
  const { failingForMs } = entry.item;
  if (failingForMs === null) return false;
  try {
    return await deps.successes.within(entry.plan.model.name, failingForMs);
  } catch {
    return false;
  }
}

/** Records what the call says of the item itself, over all of its runs. */
function noteFailure(run: Run, { breakerKey }: HostKey, { class: callClass }: CallResult, probe: boolean): void {
  run.probeRefused = probe && callClass === 'forbidden';
  if (breakerKey === '' || (callClass !== 'server_error' && callClass !== 'network')) return;
  run.failedKey = run.failedKey === null || run.failedKey === breakerKey ? breakerKey : FAILED_ON_TWO;
}

function call(deps: RunDeps, run: Run, candidate: Candidate, key: HostKey, signal: AbortSignal): Promise<CallResult> {
  const { item, body, model, modelSpans, inputs } = run.entry;
  const target = callTarget(candidate.adapter, candidate.host, key, item.batch);
  // Of duplicates only the last was judged, and an upstream may read the first: then every one is replaced.
  const asSent = candidate.wireName === model && modelSpans.length === 1;
  return deps.client.call({
    url: target.url,
    headers: target.headers as Record<string, string>,
    body: asSent ? [body] : replaceModel(body, modelSpans, candidate.wireName),
    adapter: candidate.adapter,
    inputs,
    timeoutMs: Math.max(1, run.deadline - deps.clock.monotonic()),
    signal,
  });
}

/** Reserves the tier rules of a key that was not part of the reservation; null when they are spent. */
async function reserveTier(deps: RunDeps, run: Run, key: HostKey): Promise<Refund[] | null> {
  const { item, catalog, plan, reserved } = run.entry;
  const rules = hostKeyRules(catalog, key, plan.model);
  if (rules.length === 0 || reserved?.key === key) return [];
  const request = { batchId: item.batch.id, idx: item.idx, claimNo: item.claimNo, rules };
  try {
    const [verdict] = await deps.limits.reserve([request]);
    if (verdict!.ok) return [{ ...request, atUs: verdict!.atUs }];
    run.refusal = limitRefusal(run.entry, verdict!);
  } catch {
    run.refusal = released(item, RETRY_MS, { wait: NO_ANSWER });
  }
  return null;
}

/** Refunds the reservations of prepared items that are not going to run. */
export function abandonItems(limits: Limits, entries: readonly PreparedItem[]): void {
  const refunds = entries.flatMap(({ reserved }) => (reserved && reserved.rules.length > 0 ? [reserved] : []));
  if (refunds.length > 0) limits.refund(refunds);
}
