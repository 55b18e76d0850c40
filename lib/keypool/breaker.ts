/**
 * The breaker of one host key, by itself: what an outcome does to it. Postgres applies the same rules by its own clock
 * (lib/keypool/keypool.sql.ts); this is what a replica knows at once, before Postgres has answered.
 * `test/integration/keypool/breaker-rules.test.ts` runs both through the same events.
 *
 *            failure (step+1)                 time over
 *   closed ---------------------> open ---------------------> half-open, one probe at a time
 *     ^                            ^                             |   |
 *     |        success             +----- failure (step+1) ------+   |
 *     +--------------------------------------------------------------+
 *
 * A 401 opens without end: only a new value (another breaker) or an admin's reset helps, no call still in flight.
 */
import type { CallClass } from '../upstream/call-result.ts';

/** An open breaker; null is a closed one. Times are local monotonic milliseconds. */
export interface Breaker {
  reason: 'auth' | 'rate_limit' | 'server_error' | 'network';
  /** Failures in a row, 0 to 7: the place in the back-off 1, 2, 4, 8, 16, 32, 60 s. */
  step: number;
  /** From then on it is half-open. Infinity after a 401. */
  openUntil: number;
}

/** One outcome, as far as a breaker is concerned. */
export interface BreakerEvent {
  class: CallClass;
  /** When the call was sent. */
  startedAt: number;
  retryAfterMs: number | null;
  /** The call was the one that a half-open breaker let through. */
  probe: boolean;
}

type Effect = 'close' | 'backoff' | 'retry_after' | 'auth' | 'forbidden' | 'none';

/** The breaker column of the table in behaviour section 3. "Any other status" closes. */
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

/** How long a (key, model) rests after a 403. */
export const FORBIDDEN_MS = 60_000;

/** A Retry-After beyond it is no time that Postgres or anyone could wait for; the key is probed then. */
export const MAX_RETRY_AFTER_MS = 30 * 86_400_000;

/** In-flight answers of one storm carry almost the same Retry-After: only a later end than this is worth a write. */
const EXTENSION_MS = 1_000;

const LAST_STEP = 7;

/** Milliseconds that a breaker stays open after its `step`th failure in a row (from 1). */
export function backoffMs(step: number): number {
  return Math.min(60, 2 ** (Math.min(step, LAST_STEP) - 1)) * 1000;
}

/**
 * The breaker after an outcome that is known `now`; the very same object when nothing changes. A failure of a call that
 * was sent before the breaker half-opened says nothing new: 64 calls that fail together are one failure.
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

/** Until when a (key, model) rests after a 403; unchanged for a call that was sent while it rested already. */
export function nextForbidden(restsUntil: number | undefined, startedAt: number, now: number): number {
  return restsUntil !== undefined && startedAt < restsUntil ? restsUntil : now + FORBIDDEN_MS;
}
