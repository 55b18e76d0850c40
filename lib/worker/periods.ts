import type { RetryOptions } from '../base/retry.ts';

/**
 * The periods of a worker and its lease. All replicas of a database must use the same ones, and they are no setting: tests
 * pass shorter ones, everything else the defaults.
 *
 *     heartbeat < stop claiming < give up <= lease
 *
 * A worker that is cut off stops to claim, then gives up what it runs, before another replica may take its items.
 */
export interface Periods {
  /** Silence after which a worker's items are rescued, and the grace after a start of Postgres. Whole seconds. */
  leaseSeconds: number;
  /** How often a worker checks whether a heartbeat is due. */
  tickMs: number;
  heartbeatBusyMs: number;
  heartbeatIdleMs: number;
  /** Silence after which a heartbeat's connection is given up: early enough for another one within the lease. */
  heartbeatWithinMs: number;
  /** Silence after which nothing new is claimed. */
  stopClaimingMs: number;
  /** Silence after which running calls are given up. */
  giveUpMs: number;
  /** A replica that was silent itself cannot tell a lost worker from a lost database: it rescues nobody for this long. */
  noRescueMs: number;
  /** Pauses while the database does not answer, and while the payload store takes no writes. */
  databaseRetry: Pick<RetryOptions, 'min' | 'max'>;
  storeRetry: Pick<RetryOptions, 'min' | 'max'>;
  /** Pause after a claim that failed. */
  claimRetryMs: number;
  /** How long a claim that was given up may still be carried out: a Postgres that stood still has it in its buffers. */
  doubtMs: number;
}

/** The periods of the service; those of the lease are the engine's guarantees. */
export const PERIODS: Periods = {
  leaseSeconds: 30,
  tickMs: 1000,
  heartbeatBusyMs: 5000,
  heartbeatIdleMs: 10_000,
  heartbeatWithinMs: 10_000,
  stopClaimingMs: 20_000,
  giveUpMs: 30_000,
  noRescueMs: 30_000,
  databaseRetry: { min: 20, max: 1000 },
  storeRetry: { min: 50, max: 2000 },
  claimRetryMs: 500,
  doubtMs: 120_000,
};
