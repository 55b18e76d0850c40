import { sleep } from './clock.ts';

/** How `retryUntil` waits between two tries. */
export interface RetryOptions {
  /** Pause after the first failure, ms. Each further pause is twice as long as the one before. */
  min: number;
  /** No pause is longer than this, ms. */
  max: number;
  /** Ends the retries, a pause at once and a try when it returns. */
  signal?: AbortSignal;
  /** Hears the first failure of the streak, so that it is logged once. Later failures of the streak are silent. */
  onFirst?: (error: unknown) => void;
  /** False for an error that no pause can fix. It is thrown at once. Without this function every error is retried. */
  isRetryable?: (error: unknown) => boolean;
  /** Waits between two tries; tests pass their own. */
  pause?: (ms: number, signal?: AbortSignal) => Promise<void>;
}

/** The result of the retries. `failures` counts the tries that failed before the one that succeeded. */
export type Retried<T> = { aborted: false; value: T; failures: number } | { aborted: true };

/**
 * Runs `work` until it succeeds, with a pause after each failure that doubles from `min` to `max`. Returns `aborted` when
 * the signal ends it first: a failure after that is neither reported nor retried. A success counts even if the signal has
 * aborted meanwhile, because the work is done.
 */
export async function retryUntil<T>(work: () => Promise<T>, options: RetryOptions): Promise<Retried<T>> {
  const { min, max, signal, onFirst, isRetryable, pause = sleep } = options;
  for (let failures = 0; !signal?.aborted; failures++) {
    try {
      return { aborted: false, value: await work(), failures };
    } catch (error) {
      if (signal?.aborted) break;
      if (isRetryable && !isRetryable(error)) throw error;
      if (failures === 0) onFirst?.(error);
      await pause(Math.min(max, min * 2 ** failures), signal);
    }
  }
  return { aborted: true };
}
