import type { Clock } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { isDatabaseAway } from '../db/errors.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Claimer } from './claim.ts';
import type { Holdings } from './holdings.ts';
import { isHeld } from './lease/tenure.ts';

/** How long a claim that was given up may still be carried out: a Postgres that stood still has it in its buffers. */
const DOUBT_MS = 120_000;
/** Pause after a claim that failed. */
const RETRY_MS = 500;
const MAX_WAIT_MS = 60_000;

export interface ClaimLoopDeps {
  clock: Clock;
  log: Log;
  claimer: Claimer;
  holdings: Holdings;
  /** How many items may be claimed now; `woken`: there is news of work. */
  room(woken: boolean): number;
  /** Items that are held from now on. */
  take(items: readonly ClaimedItem[]): void;
  /** No claim is under way any more. */
  onPause(): void;
}

/** Claims one after the other while there is room and work. */
export interface ClaimLoop {
  /** There may be work: claims if there is room. */
  wake(): void;
  /** The same, after `ms` milliseconds; a sooner one that is due already stays. */
  wakeIn(ms: number): void;
  /** There may be room: claims without news of work. */
  refill(): void;
  claiming(): boolean;
  /** A claim was lost: the database may have more for this worker than what is held. */
  unsure(): boolean;
  /** As the last claim said: milliseconds until a released item may run, null when none waits. */
  nextDueMs(): number | null;
  /** While a lost claim may still be carried out, looks again for what it took; called with every beat. */
  doubt(): void;
  /** The tenure has ended: what its claims took is no concern of the next. */
  forget(): void;
  /** Wakes no more; a claim under way goes on. */
  stop(): void;
}

/** A claim loop that rests. */
export function createClaimLoop(deps: ClaimLoopDeps): ClaimLoop {
  const { clock, holdings } = deps;
  let claiming = false;
  let wakeAgain = false;
  let unsure = false;
  let doubtEnds = Number.NEGATIVE_INFINITY;
  let stopping = false;
  let dueTimer: NodeJS.Timeout | null = null;
  let dueAt = 0;
  let nextDue: number | null = null;
  let failing: 'warn' | 'error' | null = null;

  const claim = async (): Promise<void> => {
    if (claiming) return;
    claiming = true;
    let tenure = holdings.tenure();
    try {
      for (;;) {
        const woken = wakeAgain;
        wakeAgain = false;
        const want = deps.room(woken);
        if (want <= 0) break;
        tenure = holdings.tenure();
        if (unsure) {
          await deps.claimer.releaseUnheld(tenure, holdings.byBatch());
          unsure = false;
        }
        const { items, more, nextDueMs } = await deps.claimer.claim(tenure, want);
        failing = null;
        if (!isHeld(tenure)) continue;
        for (const item of items) holdings.add(item);
        deps.take(items);
        nextDue = nextDueMs;
        if (nextDueMs !== null) wakeIn(nextDueMs);
        if (!more && !wakeAgain) break;
      }
    } catch (error) {
      if (isHeld(tenure)) {
        // The claim may have been committed all the same, so what it took is released before the next one. A claim that was
        // only given up may even be carried out later, so that is looked at again for a while.
        unsure = true;
        doubtEnds = clock.monotonic() + DOUBT_MS;
      }
      logFailure(error);
      wakeIn(RETRY_MS);
    } finally {
      claiming = false;
      holdings.prune();
      deps.onPause();
    }
  };

  /** Claims go on failing twice a second: one line says that the database is away, another that something is wrong. */
  const logFailure = (error: unknown) => {
    const level = isDatabaseAway(error) ? 'warn' : 'error';
    if (failing !== level) deps.log[level]({ err: reasonOf(error) }, 'claim failed');
    failing = level;
  };

  const wake = () => {
    wakeAgain = true;
    void claim();
  };

  const wakeIn = (ms: number) => {
    const waitMs = Math.min(Math.max(ms, 1), MAX_WAIT_MS);
    const at = clock.monotonic() + waitMs;
    if (stopping) return;
    if (dueTimer !== null && at >= dueAt) return;
    if (dueTimer !== null) clearTimeout(dueTimer);
    dueAt = at;
    dueTimer = setTimeout(() => {
      dueTimer = null;
      wake();
    }, waitMs);
  };

  return {
    wake,
    wakeIn,
    refill: () => void claim(),
    claiming: () => claiming,
    unsure: () => unsure,
    nextDueMs: () => nextDue,
    doubt() {
      if (stopping || clock.monotonic() > doubtEnds) return;
      unsure = true;
      wake();
    },
    forget() {
      unsure = false;
      doubtEnds = Number.NEGATIVE_INFINITY;
    },
    stop() {
      stopping = true;
      if (dueTimer !== null) clearTimeout(dueTimer);
    },
  };
}
