import type { Context } from 'aws-lambda';

/** Of Lambda's context, what the sweep uses. */
type Remaining = Pick<Context, 'getRemainingTimeInMillis'>;

export interface SweepApp {
  /** Rescues, expires, tops up wake-ups, finishes; with `housekeep` also retention, partitions, purges and orphans. */
  sweep(options: { housekeep: boolean; remainingMs: () => number }): Promise<void>;
}

/** The scheduled function on AWS: each minute, and once an hour with `{"housekeep": true}`. In the container timers do it. */
export function sweep(app: SweepApp): (event: { housekeep?: unknown }, context: Remaining) => Promise<void> {
  return ({ housekeep }, context) =>
    app.sweep({ housekeep: housekeep === true, remainingMs: () => context.getRemainingTimeInMillis() });
}
