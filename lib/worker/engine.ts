import { EventEmitter } from 'node:events';
import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Claimer } from './claim.ts';
import { createClaimLoop } from './claim-loop.ts';
import type { GroupCommit } from './commit.ts';
import type { ItemOutcome } from './commit-group.ts';
import type { Holdings } from './holdings.ts';
import { createIntake, type Preparer } from './intake.ts';
import type { Outcome } from './item/outcome.ts';
import type { Tenure } from './lease/tenure.ts';
import type { Loaded } from './load.ts';
import type { Periods } from './periods.ts';
import type { Releases } from './releases.ts';
import type { Waiting } from './slot-queue.ts';
import { createSlots, type Executor } from './slots.ts';

/** Bodies read ahead of their slots, in bytes; items beyond it stay claimed but unread until there is room. */
const READ_AHEAD_BYTES = 32 * 1024 * 1024;

/** Judges and runs items; what the engine needs of `prepare.ts` and `run.ts`. */
export type ItemRunner<Ready extends Waiting> = Preparer<Ready> & Executor<Ready>;

export interface EngineDeps<Ready extends Waiting> {
  clock: Clock;
  log: Log;
  concurrency: number;
  periods: Periods;
  /** The lease is good and the stores take writes. */
  mayClaim(): boolean;
  /** The lease is not so old that others may have the items by now. */
  mayRun(): boolean;
  /** RELAY_BATCH_ON_WORKER_LOSS=discard: a call that we cut off ourselves is not made again. */
  neverTwice: boolean;
  holdings: Holdings;
  claimer: Claimer;
  load(items: readonly ClaimedItem[]): Promise<Loaded[]>;
  runner: ItemRunner<Ready>;
  commits: GroupCommit;
  releases: Releases;
  /**
   * Nothing is held, and the last claim found nothing or none may be made; `nextDueMs` until a released item may run, null
   * when none waits. May be called again and again.
   */
  onRest?: (nextDueMs: number | null) => void;
}

export interface Engine {
  /** Items may be claimed in this tenure. When it ends, everything of it is aborted and forgotten. */
  begin(tenure: Tenure): void;
  /** There may be work: claim if there is room. */
  wake(): void;
  /** The same, after `ms` milliseconds. An earlier scheduled wake-up is kept. */
  wakeIn(ms: number): void;
  /** Ends what this worker holds of a cancelled batch: waiting items at once, running ones by closing their calls. */
  cancelBatch(batchId: string): void;
  /** The group is recorded; its items are held no longer. */
  settled(items: readonly ItemOutcome[]): void;
  /** Released items are recorded; they are held no longer. */
  letGo(items: readonly ClaimedItem[]): void;
  /** Aborts all running calls; their items are released as soon as that can be recorded. */
  abortAll(): void;
  /** Returns items that have waited too long for a slot, and what a lost claim took; called with every heartbeat. */
  tidy(): void;
  running(): number;
  waiting(): number;
  /**
   * Stops claiming, lets running items finish until the deadline, aborts and releases the rest, flushes. False when items
   * may be left that the database says are this worker's: its lease must then stay for a rescue to find them.
   */
  stop(deadlineMs: number): Promise<boolean>;
}

/** The events that go against the way of an item, from later parts to earlier ones. */
interface EngineEvents {
  /** A slot is free. */
  free: [];
  /** Items are prepared: slots may be filled. */
  prepared: [];
  /** No chunk is being read any more. */
  read: [];
  /** No claim is under way any more. */
  claimed: [];
}

/**
 * The way of an item through one worker:
 *
 *     claim loop -> intake (load, prepare) -> slots (ready, run) -> group commit | release
 *
 * Everything before the slot is done for many items at once; a slot is free as soon as the answer is in memory. The parts
 * are made from the end of this way to its beginning, each of those behind it; what goes against it goes through events.
 */
export function createEngine<Ready extends Waiting>(deps: EngineDeps<Ready>): Engine {
  const { clock, log, holdings, commits, releases, runner } = deps;
  const events = new EventEmitter<EngineEvents>();
  let stopping = false;
  const idle: (() => void)[] = [];

  const record = (item: ClaimedItem, outcome: Outcome) => {
    if (outcome.kind === 'final') commits.add(holdings.tenure(), { item, outcome });
    else if (outcome.kind === 'released') releases.add(holdings.tenure(), item, outcome);
    else holdings.remove(item);
  };

  const slots = createSlots<Ready>({
    clock,
    log,
    concurrency: deps.concurrency,
    neverTwice: deps.neverTwice,
    holdings,
    runner,
    // Answers that cannot be recorded pile up in memory: no new calls until there is room (`settled` continues).
    mayStart: () => !commits.full(),
    record,
    onFree: () => events.emit('free'),
  });
  const intake = createIntake<Ready>({
    log,
    holdings,
    load: deps.load,
    runner,
    hasRoom: () => slots.waiting() === 0 || slots.waitingBytes() < READ_AHEAD_BYTES,
    add: slots.add,
    record,
    onPrepared: () => events.emit('prepared'),
    onPause: () => events.emit('read'),
  });
  const room = (woken: boolean): number => {
    if (stopping || !deps.mayClaim() || commits.full() || releases.full()) return 0;
    const waiting = slots.waiting() + intake.size();
    const ahead = slots.turnover();
    // A wake may use the whole allowance, the steady refill half of it: a new small batch then finds room at once.
    const want = deps.concurrency + (woken ? ahead : ahead >> 1) - slots.running() - waiting;
    // Claims of a handful cost as much as large ones: refill when half of what is ahead is used up.
    return woken || waiting <= ahead >> 2 ? want : 0;
  };
  const claims = createClaimLoop({
    clock,
    log,
    periods: deps.periods,
    claimer: deps.claimer,
    holdings,
    room,
    take(items) {
      intake.add(items);
      if (stopping) intake.giveBack();
      else if (items.length > 0) intake.go();
    },
    onPause: () => events.emit('claimed'),
  });

  const fill = () => {
    if (stopping || !deps.mayRun()) {
      intake.giveBack();
      return slots.giveBack();
    }
    slots.fill();
    intake.go();
    if (room(false) > 0) claims.refill();
  };
  const isQuiet = () => slots.running() === 0 && !claims.claiming() && !intake.busy();
  const checkQuiet = () => {
    if (stopping && isQuiet()) for (const resolve of idle.splice(0)) resolve();
  };
  const checkRest = () => {
    if (!deps.onRest || stopping || holdings.byBatch().size > 0 || claims.claiming() || claims.unsure()) return;
    deps.onRest(claims.nextDueMs());
  };
  for (const event of ['free', 'prepared'] as const) events.on(event, fill);
  for (const event of ['free', 'read', 'claimed'] as const) events.on(event, checkQuiet);
  events.on('claimed', checkRest);

  const dropAll = () => {
    holdings.clear();
    slots.drop();
    intake.clear();
    claims.forget();
    checkQuiet();
  };

  return {
    begin(tenure) {
      holdings.begin(tenure);
      tenure.signal.addEventListener('abort', dropAll, { once: true });
    },
    wake: claims.wake,
    wakeIn: claims.wakeIn,
    cancelBatch(batchId) {
      // A claim under way may be about to bring items of it.
      if (!holdings.byBatch().has(batchId) && !claims.claiming()) return;
      holdings.cancel(batchId);
      intake.go();
      slots.cancel(batchId);
    },
    settled(items) {
      for (const { item } of items) holdings.remove(item);
      fill();
      checkRest();
    },
    letGo(items) {
      for (const item of items) holdings.remove(item);
      if (deps.onRest) claims.refill(); // to learn when they are due
    },
    abortAll: slots.stop,
    tidy() {
      if (slots.giveBackLate()) intake.giveBack();
      claims.doubt();
    },
    running: slots.running,
    waiting: () => slots.waiting() + intake.size(),
    async stop(deadlineMs) {
      stopping = true;
      claims.stop();
      slots.giveBack();
      intake.giveBack();
      const timer = setTimeout(slots.stop, deadlineMs);
      if (!isQuiet()) await new Promise<void>((resolve) => idle.push(resolve));
      clearTimeout(timer);
      await Promise.all([commits.flush(), releases.flush()]);
      return holdings.byBatch().size === 0 && !claims.unsure();
    },
  };
}
