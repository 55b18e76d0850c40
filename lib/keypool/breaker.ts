/**
 * The breakers of one host key: the effect of an outcome on them. A key has one for what concerns the key (401, no
 * credit, a long Retry-After), and one for each model (403, 5xx, broken connections). Postgres applies the same rules by
 * its own clock (lib/keypool/breakers.sql.ts). This file is what a replica knows at once, before Postgres has answered.
 * `test/integration/keypool/breaker-rules.test.ts` runs both through the same events.
 *
 *            3 items failed                   time over
 *   closed ---------------------> open ---------------------> half-open, one probe at a time
 *     ^                            ^                             |   |
 *     |        success             +-- the probe failed (step+1) +   |
 *     +--------------------------------------------------------------+
 *
 * A 401 opens the key's breaker without end. Only a new value (another breaker) or an admin's reset closes it, not a call
 * in flight. A 403 makes the model rest on the key for 60 s; after that its breaker is closed.
 */
import type { CallClass } from '../upstream/call-result.ts';
import { type Failure, mergeFailures, opensBreaker } from './failures.ts';

/** An open breaker; null is a closed one. Times are local monotonic milliseconds. */
export interface Breaker {
  reason: BreakerReason;
  /** The failures in a row, 0 to 7: the place in the back-off 1, 2, 4, 8, 16, 32, 60 s. */
  step: number;
  /** The time from which it is half-open. Infinity after a 401. */
  openUntil: number;
}

/** `server_error` and `network` of a key (not of a model) are those of the previous release. */
export type BreakerReason = 'auth' | 'account' | 'rate_limit' | 'forbidden' | 'server_error' | 'network';

/** The breaker of a (key, model), with the failures that may open it while it is closed. */
export interface ModelState {
  breaker: Breaker | null;
  failures: readonly Failure[];
}

/** The parts of an outcome that concern a breaker. */
export interface BreakerEvent {
  class: CallClass;
  /** The time when the call was sent. */
  startedAt: number;
  retryAfterMs: number | null;
  /** True for the call that the half-open breaker let through. */
  probe: boolean;
}

type Effect = 'close' | 'backoff' | 'retry_after' | 'auth' | 'account' | 'forbidden' | 'none';

/**
 * The breaker column of the table in "Upstream outcome classes" in docs/spec/gateway-rules.md. "Any other status"
 * closes.
 */
export const BREAKER_EFFECTS: Readonly<Record<CallClass, Effect>> = {
  success: 'close',
  bad_response: 'close',
  client_error: 'close',
  too_large: 'close',
  auth: 'auth',
  account: 'account',
  forbidden: 'forbidden',
  transient: 'none',
  rate_limit_short: 'none',
  rate_limit_long: 'retry_after',
  server_error: 'backoff',
  network: 'backoff',
  unreachable: 'none',
  timeout: 'none',
  aborted: 'none',
};

/** The time that a (key, model) rests after a 403. */
const FORBIDDEN_MS = 60_000;

/** The time after which a key whose account has no credit is tried again. */
const ACCOUNT_MS = 600_000;

/** The longest Retry-After that counts: neither Postgres nor anyone could wait longer. The key is probed then. */
export const MAX_RETRY_AFTER_MS = 30 * 86_400_000;

/** In-flight answers of one storm carry almost the same Retry-After: only a later end than this is worth a write. */
const EXTENSION_MS = 1_000;

const LAST_STEP = 7;

const CLOSED: ModelState = { breaker: null, failures: [] };

/** Returns how many milliseconds a breaker stays open after its `step`th failure in a row (from 1). */
function backoffMs(step: number): number {
  return Math.min(60, 2 ** (Math.min(step, LAST_STEP) - 1)) * 1000;
}

/** A call that was sent before the breaker half-opened: what it says is known. */
function isLate(breaker: Breaker | null, event: BreakerEvent): boolean {
  return breaker !== null && !event.probe && event.startedAt < breaker.openUntil;
}

/**
 * Returns the breaker of a key after an outcome that is known `now`, or the very same object if nothing changes. Only the
 * success of its probe ends the time without credit: calls in flight may still be answered.
 */
export function nextKeyBreaker(breaker: Breaker | null, event: BreakerEvent, now: number): Breaker | null {
  if (breaker?.reason === 'auth') return breaker;
  const step = breaker?.step ?? 0;
  const openUntil = breaker?.openUntil ?? 0;
  const noCredit = breaker?.reason === 'account';
  switch (BREAKER_EFFECTS[event.class]) {
    case 'close':
      return noCredit && !event.probe ? breaker : null;
    case 'auth':
      return { reason: 'auth', step, openUntil: Number.POSITIVE_INFINITY };
    case 'account':
      if (noCredit && isLate(breaker, event)) return breaker;
      return { reason: 'account', step, openUntil: Math.max(openUntil, now + ACCOUNT_MS) };
    case 'retry_after': {
      if (noCredit && !event.probe) return breaker;
      const until = now + Math.min(event.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
      if (isLate(breaker, event) && until <= openUntil + EXTENSION_MS) return breaker;
      return { reason: 'rate_limit', step, openUntil: Math.max(openUntil, until) };
    }
    default:
      return breaker;
  }
}

/**
 * Returns the breaker of a (key, model) after an outcome that is known `now`, or the very same object if nothing changes.
 * `failed` is what a failure adds to the failures of a closed breaker. Once the breaker is open, only the failure of its
 * probe counts: 64 calls that fail together are one step.
 */
export function nextModelState(
  state: ModelState,
  event: BreakerEvent,
  failed: readonly Failure[],
  now: number,
): ModelState {
  const { breaker } = state;
  const resting = breaker?.reason === 'forbidden';
  switch (BREAKER_EFFECTS[event.class]) {
    case 'close':
      if (resting || (breaker === null && state.failures.length === 0)) return state;
      return CLOSED;
    case 'forbidden':
      if (isLate(breaker, event)) return state;
      return {
        breaker: { reason: 'forbidden', step: 0, openUntil: Math.max(breaker?.openUntil ?? 0, now + FORBIDDEN_MS) },
        failures: [],
      };
    case 'backoff': {
      const reason = event.class === 'network' ? 'network' : 'server_error';
      if (breaker !== null && !(resting && now >= breaker.openUntil)) {
        if (!event.probe) return state;
        const step = Math.min(breaker.step + 1, LAST_STEP);
        const openUntil = Math.max(breaker.openUntil, now + backoffMs(step));
        return { breaker: { reason, step, openUntil }, failures: [] };
      }
      const failures = mergeFailures(state.failures, failed);
      if (!opensBreaker(failures, now)) return { breaker, failures };
      return { breaker: { reason, step: 1, openUntil: now + backoffMs(1) }, failures: [] };
    }
    default:
      return state;
  }
}
