/**
 * The breaker of one host key: the effect of an outcome on it. Postgres applies the same rules by its own clock
 * (lib/keypool/keypool.sql.ts). This file is what a replica knows at once, before Postgres has answered.
 * `test/integration/keypool/breaker-rules.test.ts` runs both through the same events.
 *
 *            failure (step+1)                 time over
 *   closed ---------------------> open ---------------------> half-open, one probe at a time
 *     ^                            ^                             |   |
 *     |        success             +----- failure (step+1) ------+   |
 *     +--------------------------------------------------------------+
 *
 * A 401 opens it without end. Only a new value (another breaker) or an admin's reset closes it, not a call in flight.
 */
import type { CallClass } from '../upstream/call-result.ts';

/** An open breaker; null is a closed one. Times are local monotonic milliseconds. */
export interface Breaker {
  reason: 'auth' | 'rate_limit' | 'server_error' | 'network';
  /** The failures in a row, 0 to 7: the place in the back-off 1, 2, 4, 8, 16, 32, 60 s. */
  step: number;
  /** The time from which it is half-open. Infinity after a 401. */
  openUntil: number;
}

/** The parts of an outcome that concern a breaker. */
export interface BreakerEvent {
  class: CallClass;
  /** The time when the call was sent. */
  startedAt: number;
  retryAfterMs: number | null;
  /** True for the call that a half-open breaker let through. */
  probe: boolean;
}

type Effect = 'close' | 'backoff' | 'retry_after' | 'auth' | 'forbidden' | 'none';

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
  forbidden: 'forbidden',
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

/** The longest Retry-After that counts: neither Postgres nor anyone could wait longer. The key is probed then. */
export const MAX_RETRY_AFTER_MS = 30 * 86_400_000;

/** In-flight answers of one storm carry almost the same Retry-After: only a later end than this is worth a write. */
const EXTENSION_MS = 1_000;

const LAST_STEP = 7;

/** Returns how many milliseconds a breaker stays open after its `step`th failure in a row (from 1). */
function backoffMs(step: number): number {
  return Math.min(60, 2 ** (Math.min(step, LAST_STEP) - 1)) * 1000;
}

/**
 * Returns the breaker after an outcome that is known `now`, or the very same object if nothing changes. A failure of a
 * call that was sent before the breaker half-opened is not news: 64 calls that fail together are one failure.
 */
export function nextBreaker(breaker: Breaker | null, event: BreakerEvent, now: number): Breaker | null {
  const effect = BREAKER_EFFECTS[event.class];
  if (breaker?.reason === 'auth' || effect === 'none' || effect === 'forbidden') return breaker;
  if (effect === 'close') return null;
  const step = breaker?.step ?? 0;
  if (effect === 'auth') return { reason: 'auth', step, openUntil: Number.POSITIVE_INFINITY };
  const openUntil = breaker?.openUntil ?? 0;
  const late = breaker !== null && !event.probe && event.startedAt < openUntil;
  if (effect === 'retry_after') {
    const until = now + Math.min(event.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
    if (late && until <= openUntil + EXTENSION_MS) return breaker;
    return { reason: 'rate_limit', step, openUntil: Math.max(openUntil, until) };
  }
  if (late) return breaker;
  const reason = event.class === 'network' ? 'network' : 'server_error';
  const next = Math.min(step + 1, LAST_STEP);
  return { reason, step: next, openUntil: Math.max(openUntil, now + backoffMs(next)) };
}

/** Returns until when a (key, model) rests after a 403. A call that was sent while it rested changes nothing. */
export function nextForbidden(restsUntil: number | undefined, startedAt: number, now: number): number {
  return restsUntil !== undefined && startedAt < restsUntil ? restsUntil : now + FORBIDDEN_MS;
}
