import type { Worker } from './worker.ts';

/** Nothing is claimed unless the item could use its whole time limit and this much would still be left. */
const CLAIM_MARGIN_MS = 30_000;
/** With so much left, calls are aborted, their items released and everything is flushed. */
const LAST_MS = 20_000;
/** An item that is due within this time is waited for: a new invocation would come no sooner, and cost as much. */
const WAIT_MS = 3000;
const TICK_MS = 250;
/** Without a lease by then, Postgres cannot be reached. */
const LEASE_WITHIN_MS = 30_000;

/** The calls between an invocation and its worker. */
export interface InvocationHooks {
  /** True when no further item may be claimed. */
  paused(): boolean;
  /** Nothing is in hand and nothing can be claimed; `nextDueMs` until a released item may run, null when none waits. */
  onRest(nextDueMs: number | null): void;
}

export interface InvocationDeps {
  /** Until the platform ends the invocation; never longer than its time-out, and falling. */
  remainingMs(): number;
  itemTimeoutMs: number;
  startWorker(hooks: InvocationHooks): Pick<Worker, 'started' | 'stop'>;
}

/**
 * Lets one worker, with an id and a lease of its own, work until there is nothing to do or the time is up, and ends it.
 * timers freeze when an invocation returns, so nothing may be left in memory and no lease may stand.
 *
 *     time left > item limit + 30 s   claims
 *                                     runs what it has; nothing in hand: ends
 *     20 s left                       aborts, releases, flushes, ends
 *
 * Rejects when no lease could be had within 30 s.
 */
export async function runInvocation(deps: InvocationDeps): Promise<void> {
  const mayClaim = () => deps.remainingMs() > deps.itemTimeoutMs + CLAIM_MARGIN_MS;
  let end: () => void = () => {};
  const ended = new Promise<'ended'>((resolve) => {
    end = () => resolve('ended');
  });
  const worker = deps.startWorker({
    paused: () => !mayClaim(),
    onRest(nextDueMs) {
      if (nextDueMs === null || nextDueMs > WAIT_MS || !mayClaim()) end();
    },
  });
  const timeUp = setInterval(() => {
    if (deps.remainingMs() <= LAST_MS) end();
  }, TICK_MS);
  let noLease: NodeJS.Timeout | undefined;
  const away = new Promise<'away'>((resolve) => {
    noLease = setTimeout(() => resolve('away'), LEASE_WITHIN_MS);
    void worker.started.then(() => clearTimeout(noLease));
  });
  const how = await Promise.race([ended, away]);
  clearInterval(timeUp);
  clearTimeout(noLease);
  await worker.stop(0);
  if (how === 'away') throw new Error('no lease within 30 s: the database does not answer');
}
