import { ApiError, ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';

/** The reason why this replica does not answer yet. */
export interface NotReady {
  code: 'not_ready' | 'schema_outdated';
  /** For people and logs, without secrets: `payload directory is not shared`. */
  reason: string;
}

export interface Step {
  /** The reason that is reported while the step is not done: `waiting for migrations`. */
  waiting: string;
  /** Does the step; returns null when done, or the reason why it cannot be yet. Errors are waited out. */
  run(): Promise<string | null>;
}

export interface Readiness {
  notReady(): NotReady | null;
  /** Something that was well is not any more (null: it is again). */
  degrade(reason: string | null): void;
  /** True while something that was well is not. */
  degraded(): boolean;
  /** Resolves when all steps are done; rejects with the first ConfigError. */
  done: Promise<void>;
}

const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 2000;

/** A step cannot be done yet. The message is the reason that `/healthz` says. */
class NotYet extends Error {}

/**
 * Runs the start's steps one after the other. Only a configuration error ends it: a database or a store that cannot be
 * reached is waited for, and `/healthz` says meanwhile what is missing.
 */
export function createReadiness(steps: readonly Step[], log: Log, signal: AbortSignal): Readiness {
  let current: NotReady | null = { code: 'not_ready', reason: 'starting' };
  let degraded: string | null = null;

  const run = async (): Promise<void> => {
    for (const step of steps) {
      await retryUntil(() => attempt(step), {
        min: RETRY_MIN_MS,
        max: RETRY_MAX_MS,
        signal,
        isRetryable: (error) => !(error instanceof ConfigError),
        onFirst: (error) => log.warn({ reason: reasonOf(error) }, 'not ready'),
      });
    }
    if (!signal.aborted) current = null;
  };

  const attempt = async (step: Step): Promise<void> => {
    current = { code: 'not_ready', reason: step.waiting };
    const reason = await step.run().catch((error) => {
      if (error instanceof ConfigError) throw error;
      if (!(error instanceof ApiError)) log.warn({ err: reasonOf(error) }, step.waiting);
      return step.waiting;
    });
    if (reason === null) return;
    current = { code: 'not_ready', reason };
    throw new NotYet(reason);
  };

  return {
    notReady: () => current ?? (degraded === null ? null : { code: 'not_ready', reason: degraded }),
    degraded: () => degraded !== null,
    degrade(reason) {
      if (reason !== degraded) log.warn({ reason }, reason === null ? 'ready again' : 'not ready');
      degraded = reason;
    },
    done: run(),
  };
}
