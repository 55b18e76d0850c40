import type { Clock } from '../../base/clock.ts';
import { includesInSteps, type Steps } from '../../base/turns.ts';
import type { BreakerReason } from '../../keypool/breaker.ts';
import type { KeyPool } from '../../keypool/pool.ts';
import type { BucketRule } from '../../limits/rules.ts';
import type { Wait } from '../../model/batch.ts';
import type { HostKey } from '../../model/catalog.ts';
import type { ErrorKind, UsageFacts } from '../../model/usage-event.ts';
import type { Candidate } from '../../routing/plan.ts';
import { failureOf, nextBinding } from '../../upstream/attempt-policy.ts';
import type { CallClass, CallResult } from '../../upstream/call-result.ts';
import { MIN_SECRET_LENGTH } from '../../upstream/told-error.ts';
import { price } from '../../usage/cost.ts';
import { measure } from '../../usage/measure.ts';
import { routeFacts } from './facts.ts';
import type { Judged, PreparedItem } from './judge.ts';
import { type Outcome, refused, released } from './outcome.ts';

/** Retries of `max_attempts`: 1 s, doubled each round, at most 60 s, with jitter; Retry-After is the floor. */
const ROUND_BASE_MS = 1000;
const ROUND_MAX_MS = 60_000;
/** An item that finds a breaker's probe under way looks again after this long at the earliest. */
const MIN_PAUSE_MS = 250;
/**
 * When no key reopens by itself, an item looks again after a minute, and later after a quarter of what it has waited. An
 * admin may have reset a key, or stored a new value. Looking makes no call.
 */
const LOOK_AGAIN_MS = 60_000;
const LOOK_AGAIN_MOST_MS = 600_000;

/**
 * Classes that `max_attempts` runs again ("Retries and waits" in docs/spec/engine-guarantees.md: 408, 409, 425, 429, 5xx,
 * network and unreachable).
 */
const RETRYABLE: ReadonlySet<CallClass> = new Set<CallClass>([
  'rate_limit_short',
  'rate_limit_long',
  'server_error',
  'transient',
  'network',
  'unreachable',
]);

/** Classes of the failed rounds that end an item of the SDK surfaces ("How items of the SDK surfaces run"). */
const FAILED_ROUND: ReadonlySet<CallClass> = new Set<CallClass>([
  'server_error',
  'transient',
  'network',
  'bad_response',
]);
/** Failed rounds after which such an item ends: while others of its model succeed, and anyhow. */
const MAX_FAILED_BESIDE_OTHERS = 6;
const MAX_FAILED = 12;

/** One run of an item, as far as it got. */
export interface Run {
  entry: PreparedItem;
  /** Upstream calls of this run; three dials of an unreachable host are one. */
  calls: number;
  /** Some host could be reached: what was reserved is spent. */
  dialled: boolean;
  first: CallResult | null;
  last: { result: CallResult; candidate: Candidate; key: HostKey } | null;
  /** The last answer repeats the key that it was called with (`tellsKey`). */
  tellsKey: boolean;
  /** The last call was the probe of a half-open breaker, and ended in a 403. */
  probeRefused: boolean;
  /** As of the item, with what this run added. */
  failedKey: string | null;
  /** Others of its model succeeded since the item's first failed round. */
  othersSucceed: boolean;
  /** Monotonic ms. */
  deadline: number;
  /** The outcome when a key's tier refused; else null. */
  refusal: Outcome | null;
  /** Rules whose token meters the answer is charged to. */
  charged: BucketRule[];
}

export interface ConcludeDeps {
  pool: KeyPool;
  clock: Clock;
  itemTimeoutMs: number;
  aborted: boolean;
}

/** Turns what a run came to into the item's outcome; pure, except for the clock and the breakers that it reads. */
export function conclude(deps: ConcludeDeps, run: Run): Outcome {
  const { item } = run.entry;
  const { last } = run;
  const spent = { attempts: item.attempts + run.calls, failedKey: run.failedKey };
  if (last?.result.class === 'success') return success(run, last);
  // An abort that came after a final answer changes nothing of it.
  const open = last === null || nextBinding(last.result.class);
  // The calls made stay counted (every attempt stands in the usage event), but no round of `max_attempts` is spent.
  if ((deps.aborted && open) || last?.result.class === 'aborted') return released(item, 0, spent);
  if (last === null) return unsent(deps, run);

  const timedOut = RETRYABLE.has(last.result.class) && deps.clock.monotonic() >= run.deadline;
  const seconds = deps.itemTimeoutMs / 1000;
  const failure = timedOut
    ? { errorKind: 'timeout' as const, text: `timed out after ${seconds}s` }
    : failureOf(last.result, last.candidate.host.name, seconds, secretsOf(last))!;
  if (isKeyRefused(run, last)) {
    const paused = pause(deps, run.entry, spent, failure.text);
    if (paused !== null) return paused;
  }
  const rounds = item.rounds + 1;
  if (RETRYABLE.has(last.result.class) && rounds < item.batch.maxAttempts && !hasFailedEnough(run)) {
    const backOff = Math.min(ROUND_MAX_MS, ROUND_BASE_MS * 2 ** item.rounds) * (0.5 + Math.random());
    const reason = last.result.class === 'unreachable' ? 'host_down' : 'retry_pause';
    const wait: Wait = { reason, text: failure.text, hostKey: last.key.name || null };
    return released(item, Math.max(backOff, last.result.retryAfterMs ?? 0), {
      ...spent,
      rounds,
      failedRounds: failedRoundsOf(run),
      wait,
    });
  }
  return {
    kind: 'final',
    state: 'discarded',
    error: `batch item: ${failure.text}`,
    // The native API never returns an upstream's error body, so it is not kept for its batches.
    response: item.batch.surface === 'relay' || run.tellsKey ? null : last.result.body,
    usage: facts(run, last, failure.errorKind, failure.text),
    charged: run.charged,
  };
}

/** The failed rounds of the item with this one. */
function failedRoundsOf({ entry, last }: Run): number {
  return entry.item.failedRounds + (last !== null && FAILED_ROUND.has(last.result.class) ? 1 : 0);
}

/** On the native surface `max_attempts` alone decides; 429 and unreachable hosts end nothing on the SDK surfaces. */
function hasFailedEnough(run: Run): boolean {
  if (!mayEndByRounds(run)) return false;
  return run.othersSucceed || failedRoundsOf(run) >= MAX_FAILED;
}

/** Whether the success of others would end the item: only then they are looked up. */
export function mayEndByRounds(run: Run): boolean {
  const { entry, last } = run;
  if (entry.item.batch.surface === 'relay' || last === null || !FAILED_ROUND.has(last.result.class)) return false;
  return failedRoundsOf(run) >= MAX_FAILED_BESIDE_OTHERS;
}

/** The values of all keys that the item may have been sent with to this host. */
function secretsOf({ candidate, key }: NonNullable<Run['last']>): (string | null)[] {
  return [key.value, ...candidate.keys.map(({ value }) => value)];
}

/**
 * Whether the last answer repeats the key that it refuses, as some upstreams do; it is the operator's, and not for the
 * owner of the batch.
 */
export function* tellsKey({ entry, last }: Run): Steps<boolean> {
  if (last === null || last.result.body === null || last.result.class === 'success') return false;
  const { value } = last.key;
  if (entry.item.batch.surface === 'relay' || value === null || value.length < MIN_SECRET_LENGTH) return false;
  return yield* includesInSteps(last.result.body, value);
}

/** No call was made: breakers are open, probes taken, or tiers spent. */
function unsent(deps: ConcludeDeps, run: Run): Outcome {
  return run.refusal ?? pauseOrFail(deps, run.entry);
}

/**
 * A 401, a 402 or the like says nothing of the item; nor does the 403 of a probe, which was sent to learn of the key.
 * Such an item waits as if it had found the breaker open. An anonymous key has no breaker to wait for.
 */
function isKeyRefused(run: Run, { result, key }: NonNullable<Run['last']>): boolean {
  if (key.breakerKey === '') return false;
  return result.class === 'auth' || result.class === 'account' || run.probeRefused;
}

/**
 * The outcome of an item for which no key may be drawn now. A breaker pauses an item, it does not drain it: the item
 * waits for the earliest that reopens, as long as that is within its time limit over all its waits.
 */
export function pauseOrFail(deps: Pick<ConcludeDeps, 'pool' | 'itemTimeoutMs'>, entry: Judged): Outcome {
  const { item, plan } = entry;
  const paused = pause(deps, entry, {}, null);
  if (paused !== null) return paused;
  return refused(item, 'keys_exhausted', 'no healthy keys in pool', routeFacts(plan, plan.candidates[0]!, NO_KEY));
}

/** The pause of an item for open breakers; null when they end too late for it. `text` is that of its own last failure. */
function pause(
  deps: Pick<ConcludeDeps, 'pool' | 'itemTimeoutMs'>,
  { item, plan }: Judged,
  spent: Parameters<typeof released>[2],
  text: string | null,
): Outcome | null {
  const { inMs, reason, hostKey } = deps.pool.reopening(plan, item.batch.owner);
  const waits = item.batch.onLimit === 'wait';
  if (inMs === null && !waits) return null;
  const lookAgain = Math.min(LOOK_AGAIN_MOST_MS, Math.max(LOOK_AGAIN_MS, item.waitedMs / 4));
  const delayMs = Math.max(inMs ?? lookAgain, MIN_PAUSE_MS);
  const waitedMs = item.waitedMs + delayMs;
  if (waitedMs > deps.itemTimeoutMs && !waits) return null;
  const wait: Wait = {
    reason: reason === 'account' ? 'no_credit' : 'key_breaker',
    text: text ?? BREAKER_TEXTS[reason ?? 'server_error'],
    hostKey,
  };
  return released(item, delayMs, { ...spent, waitedMs, wait });
}

const BREAKER_TEXTS: Readonly<Record<BreakerReason, string>> = {
  auth: 'upstream status 401',
  account: 'the account at the upstream has no credit',
  forbidden: 'upstream status 403',
  rate_limit: 'upstream status 429',
  server_error: 'upstream status 5xx',
  network: 'connection to upstream lost',
};

const NO_KEY: HostKey = { id: '', name: '', host: '', value: null, breakerKey: '', enabled: false };

function success(run: Run, last: NonNullable<Run['last']>): Outcome {
  return {
    kind: 'final',
    state: 'completed',
    error: null,
    response: last.result.body,
    usage: facts(run, last, null, null),
    charged: run.charged,
  };
}

function facts(
  run: Run,
  last: NonNullable<Run['last']>,
  errorKind: ErrorKind | null,
  errorMessage: string | null,
): UsageFacts {
  const { result, candidate, key } = last;
  const { entry, first } = run;
  const { tokens, finishReason } = errorKind === null ? measure(candidate.adapter, result.parsed) : NOTHING;
  const pricing =
    candidate.binding.pricing === undefined ? undefined : entry.catalog.pricings.get(candidate.binding.pricing);
  const cost = tokens === null ? null : price(pricing, tokens);
  const startedAt = first!.startedAt;
  const end = result.responseEndedAt ?? result.responseStartedAt;
  return {
    status: result.status,
    errorKind,
    errorMessage,
    attempts: entry.item.attempts + run.calls,
    durationMs: Math.max(0, (end ?? Date.now()) - startedAt),
    startedAt,
    responseStartedAt: result.responseStartedAt,
    responseEndedAt: result.responseEndedAt,
    finishReason,
    route: routeFacts(entry.plan, candidate, key),
    tokens,
    costNanos: cost?.costNanos ?? null,
    costBreakdown: cost?.breakdown ?? null,
  };
}

const NOTHING = { tokens: null, finishReason: null };
