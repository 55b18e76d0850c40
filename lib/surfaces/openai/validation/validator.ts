import { reasonOf } from '../../../base/errors.ts';
import { NoLongerOurs, type ValidateDeps, validateBatch } from './validate.ts';
import { claimValidation, releaseValidation } from './validation.sql.ts';

/** Validates batches one after the other: one is in memory at a time, and 200 MB take a second or two. */
export interface Validator {
  /** There may be something to validate: looks in the background. Never rejects. */
  poke(): void;
  /**
   * Validates what waits, until nothing does or less than a minute of `remainingMs` is left; returns how many it took in
   * hand. Used where nothing runs after an invocation returns. Rejects when the database cannot be reached.
   */
  run(remainingMs?: () => number): Promise<number>;
  /** Ends the present one, whose lease is given back, and takes no other. */
  stop(): Promise<void>;
}

/** None is begun with less than this left: 200 MB from S3 take a few seconds. */
const NEEDED_MS = 60_000;
/** A batch whose file or database could not be read is left alone for so long. */
const RETRY_SECONDS = 10;

/** A validator. Any number may run on one database: each batch has a lease. */
export function createValidator(deps: ValidateDeps): Validator {
  const stopping = new AbortController();
  const { signal } = stopping;
  let running: Promise<number> | null = null;
  let poked = false;

  /** False when nothing waited. */
  const one = async (): Promise<boolean> => {
    const job = await claimValidation(deps.db);
    if (job === null) return false;
    try {
      await validateBatch(deps, job, signal);
    } catch (error) {
      if (error instanceof NoLongerOurs) return true;
      if (!signal.aborted) {
        deps.log.warn({ err: reasonOf(error), batch: job.id }, 'batch not validated, it is tried again');
      }
      await releaseValidation(deps.db, job, signal.aborted ? 0 : RETRY_SECONDS);
    }
    return true;
  };

  const all = async (remainingMs: () => number): Promise<number> => {
    let count = 0;
    while (!signal.aborted && remainingMs() > NEEDED_MS) {
      poked = false;
      if (await one()) count++;
      else if (!poked) break;
    }
    return count;
  };

  const run = (remainingMs = () => Number.POSITIVE_INFINITY): Promise<number> => {
    poked = true;
    running ??= all(remainingMs).finally(() => {
      running = null;
    });
    return running;
  };

  return {
    poke() {
      run().catch((error) => {
        deps.log.warn({ err: reasonOf(error) }, 'could not look for batches to validate, the sweep does');
      });
    },
    run,
    async stop() {
      stopping.abort();
      await running?.catch(() => {});
    },
  };
}
