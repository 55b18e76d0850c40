/**
 * One period of holding a lease: from the moment its row stands until the row is lost or given up.
 *
 *     lease row stands ──► tenure ──► row taken by a rescue, or given up at the stop: the signal aborts
 *                                                       │
 *                          next tenure, new worker id ◄─┘ (not after a stop)
 *
 * Claims, outcomes and releases carry the tenure that they were begun in. Code that waited checks the signal first:
 * work of an ended tenure is dropped, because the items are no longer this worker's. Tenures never overlap.
 */
export interface Tenure {
  readonly workerId: string;
  /** Aborts when the tenure ends. A worker that only misses heartbeats still has its tenure. */
  readonly signal: AbortSignal;
}

/** The tenure of a worker that holds no lease: it has ended already. */
export const NO_TENURE: Tenure = { workerId: '', signal: AbortSignal.abort() };

/** Begins the tenure of a worker id whose lease stands; `end` ends it. */
export function beginTenure(workerId: string): { tenure: Tenure; end(): void } {
  const ending = new AbortController();
  return { tenure: { workerId, signal: ending.signal }, end: () => ending.abort() };
}

/** False once the tenure has ended. */
export function isHeld(tenure: Tenure): boolean {
  return !tenure.signal.aborted;
}
