import { sleep } from '../base/clock.ts';
import { ApiError, ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';

/** Why this replica does not answer yet. */
export interface NotReady {
  code: 'not_ready' | 'schema_outdated';
  /** For people and logs, without secrets: `payload directory is not shared`. */
  reason: string;
}

export interface Step {
  /** What is said while the step is not done: `waiting for migrations`. */
  waiting: string;
  /** Does the step; gives null when done, or the reason why it cannot be yet. Errors are waited out. */
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

const RETRY_MAX_MS = 2000;

/**
 * Runs the start's steps one after the other. Only a configuration error ends it: a database or a store that is away is
 * waited for, and `/healthz` says meanwhile what is missing.
 */
export function createReadiness(steps: readonly Step[], log: Log, signal: AbortSignal): Readiness {
  let current: NotReady | null = { code: 'not_ready', reason: 'starting' };
  let degraded: string | null = null;

  const run = async (): Promise<void> => {
    for (const step of steps) {
      for (let tries = 0; !signal.aborted; tries++) {
        const reason = await attempt(step);
        if (reason === null) break;
        if (tries === 0) log.warn({ reason }, 'not ready');
        current = { code: 'not_ready', reason };
        await sleep(Math.min(RETRY_MAX_MS, 50 * 2 ** tries), signal);
      }
    }
    if (!signal.aborted) current = null;
  };

  const attempt = async (step: Step): Promise<string | null> => {
    current = { code: 'not_ready', reason: step.waiting };
    try {
      return await step.run();
    } catch (error) {
      if (error instanceof ConfigError) throw error;
      if (!(error instanceof ApiError)) log.warn({ err: reasonOf(error) }, step.waiting);
      return step.waiting;
    }
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
