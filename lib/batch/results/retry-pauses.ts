const RETRY_MIN_MS = 10_000;
const RETRY_MAX_MS = 3_600_000;
/**
 * A batch that was not tried again for this time does not wait any more: the sweep offers every waiting one with each
 * heartbeat.
 */
const FORGET_MS = 3_600_000;

/** The ids that failed, and when each may be tried again. */
export interface RetryPauses {
  /** False during the pause after a failure. */
  mayTry(id: string): boolean;
  /** Begins a pause: 10 s, doubled with each failure, at most an hour. */
  failed(id: string): void;
  succeeded(id: string): void;
  /** Those whose pause is not over. */
  paused(): string[];
  /** How many are remembered. */
  size(): number;
}

/** Growing pauses by id. An id that is not heard of again (a batch that was deleted) is forgotten with a later failure. */
export function createRetryPauses(monotonic: () => number): RetryPauses {
  const pauses = new Map<string, { notBefore: number; pauseMs: number }>();
  return {
    mayTry: (id) => monotonic() >= (pauses.get(id)?.notBefore ?? Number.NEGATIVE_INFINITY),
    failed(id) {
      const now = monotonic();
      const before = pauses.get(id);
      const pauseMs = before ? Math.min(RETRY_MAX_MS, before.pauseMs * 2) : RETRY_MIN_MS;
      pauses.set(id, { notBefore: now + pauseMs, pauseMs });
      for (const [other, { notBefore }] of pauses) if (notBefore + FORGET_MS < now) pauses.delete(other);
    },
    succeeded: (id) => void pauses.delete(id),
    paused: () => [...pauses.keys()].filter((id) => monotonic() < pauses.get(id)!.notBefore),
    size: () => pauses.size,
  };
}
