export interface SweepApp {
  /** Rescues, expires, tops up wake-ups, finishes; with `housekeep` also retention, partitions, purges and orphans. */
  sweep(options: { housekeep: boolean }): Promise<void>;
}

/** The scheduled function on AWS: each minute, and once an hour with `{"housekeep": true}`. In the container timers do it. */
export function sweep(app: SweepApp): (event: { housekeep?: unknown }) => Promise<void> {
  return (event) => app.sweep({ housekeep: event.housekeep === true });
}
