import type { Clock } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { createTransition, type Transitions } from '../base/modes.ts';
import { retryLevel } from '../db/errors.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Claimer } from './claim.ts';
import type { Holdings } from './holdings.ts';
import { isHeld } from './lease/tenure.ts';
import type { Periods } from './periods.ts';

const MAX_WAIT_MS = 60_000;

export interface ClaimLoopDeps {
  clock: Clock;
  log: Log;
  periods: Pick<Periods, 'claimRetryMs' | 'doubtMs'>;
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
  /** The same, after `ms` milliseconds. An earlier scheduled wake-up is kept. */
  wakeIn(ms: number): void;
  /** There may be room: claims without news of work. */
  refill(): void;
  claiming(): boolean;
  /** A claim was lost: the database may have more for this worker than what is held. */
  unsure(): boolean;
  /** As the last claim said: milliseconds until a released item may run, null when none waits. */
  nextDueMs(): number | null;
  /** While a lost claim may still be carried out, looks again for what it took; called with every heartbeat. */
  doubt(): void;
  /** The tenure has ended: its claims do not concern the next. */
  forget(): void;
  /** Wakes no more; a claim under way continues. */
  stop(): void;
}

/**
 * The modes of a claim loop within one tenure.
 *
 *            room            nothing more to claim, or no room
 *     idle ────────► claiming ──────────────────────────────────► idle
 *      │              ▲  │  └── more to claim: claiming
 *      │ a claim that │  │ failed: it may be committed all the same
 *      │ failed may   │  ▼
 *      └────────────► unsure ──── room ────► recovering ──► claiming
 *        still be       ▲                        │
 *        carried out    └──────── failed ────────┘
 *
 * `recovering` releases what a lost claim took, and only then is the next claim made. The end of the tenure leads from
 * every mode back to `idle`, from `claiming` and `recovering` when their statement returns.
 */
type Mode = 'idle' | 'claiming' | 'unsure' | 'recovering';

const TRANSITIONS: Transitions<Mode> = {
  idle: ['claiming', 'unsure'],
  claiming: ['claiming', 'idle', 'unsure'],
  unsure: ['recovering', 'idle'],
  recovering: ['claiming', 'idle', 'unsure'],
};

/** A claim loop that rests. */
export function createClaimLoop(deps: ClaimLoopDeps): ClaimLoop {
  const { clock, holdings, periods } = deps;
  const transition = createTransition('claim loop', TRANSITIONS, deps.log);
  let mode: Mode = 'idle';
  /** News of work that came while a statement was under way. */
  let wakeAgain = false;
  /** A heartbeat came while a statement was under way, and a claim that failed may still be carried out. */
  let doubted = false;
  let doubtEnds = Number.NEGATIVE_INFINITY;
  let stopping = false;
  let dueTimer: NodeJS.Timeout | null = null;
  let dueAt = 0;
  let nextDue: number | null = null;
  let failing: 'warn' | 'error' | null = null;

  const go = (to: Mode) => {
    mode = transition(mode, to);
  };
  const isBusy = () => mode === 'claiming' || mode === 'recovering';

  const claim = async (): Promise<void> => {
    if (isBusy()) return;
    let tenure = holdings.tenure();
    try {
      for (;;) {
        const woken = wakeAgain;
        wakeAgain = false;
        const want = deps.room(woken);
        if (want <= 0) break;
        tenure = holdings.tenure();
        if (mode === 'unsure') {
          go('recovering');
          await deps.claimer.releaseUnheld(tenure, holdings.byBatch());
          if (!isHeld(tenure)) continue;
        }
        go('claiming');
        const { items, more, nextDueMs } = await deps.claimer.claim(tenure, want);
        failing = null;
        if (!isHeld(tenure)) continue;
        for (const item of items) holdings.add(item);
        deps.take(items);
        nextDue = nextDueMs;
        if (nextDueMs !== null) wakeIn(nextDueMs);
        if (doubted) go('unsure');
        doubted = false;
        if (!more && !wakeAgain) break;
      }
      if (isBusy()) go('idle');
    } catch (error) {
      if (isHeld(tenure)) {
        // The claim may have been committed all the same, so what it took is released before the next one. A claim that was
        // only given up may even be carried out later, so that is looked at again for a while.
        go('unsure');
        doubtEnds = clock.monotonic() + periods.doubtMs;
      } else go('idle');
      doubted = false;
      logFailure(error);
      wakeIn(periods.claimRetryMs);
    } finally {
      holdings.prune();
      deps.onPause();
    }
  };

  /**
   * Claims continue failing twice a second: one line says that the database cannot be reached, another that something
   * is wrong.
   */
  const logFailure = (error: unknown) => {
    const level = retryLevel(error);
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
    claiming: isBusy,
    unsure: () => doubted || mode === 'unsure' || mode === 'recovering',
    nextDueMs: () => nextDue,
    doubt() {
      if (stopping || clock.monotonic() > doubtEnds) return;
      if (mode === 'idle') go('unsure');
      else if (isBusy()) doubted = true;
      wake();
    },
    forget() {
      if (mode === 'unsure') go('idle');
      doubted = false;
      doubtEnds = Number.NEGATIVE_INFINITY;
    },
    stop() {
      stopping = true;
      if (dueTimer !== null) clearTimeout(dueTimer);
    },
  };
}
