import type { Clock } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { createTransition, type Transitions } from '../base/modes.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Holdings } from './holdings.ts';
import { cancelled, type Outcome, refused, released } from './item/outcome.ts';
import { createSlotQueue, type Waiting } from './slot-queue.ts';

/** An item that got no slot for this long goes back: the upstream has become slow, and another replica may be idle. */
const READY_MAX_MS = 10_000;
const FINISHED_WINDOW_MS = 250;
/**
 * Items started in one go; more wait until the event loop has been round. Of 256 answers that arrive together each starts
 * the next call, and undici writes all of those in one stretch. Half of the stretches took over 5 ms of CPU, and the
 * longest 20 ms, in which no request, heartbeat or timer is served.
 */
const STARTS_AT_ONCE = 16;
/** Runs that may fail by a fault of our own before the item does: each may have been a call upstream. */
const MAX_FAULTS = 3;
/** Pause before the next of them. */
const FAULT_PAUSE_MS = 5000;

/** Runs items; what the slots need of `run.ts`. */
export interface Executor<Ready extends Waiting> {
  /** Runs one item to its outcome. Never throws for anything an upstream does. */
  run(ready: Ready, signal: AbortSignal): Promise<Outcome>;
  /** A prepared item will not be run in this claim: returns what was reserved for it. */
  abandon(ready: readonly Ready[]): void;
  /** An outcome that came after the lease was lost is not recorded by us: lets go of its response. */
  forget(outcome: Outcome): void;
}

export interface SlotsDeps<Ready extends Waiting> {
  clock: Clock;
  log: Log;
  concurrency: number;
  /** RELAY_BATCH_ON_WORKER_LOSS=discard: a call that we cut off ourselves is not made again. */
  neverTwice: boolean;
  holdings: Holdings;
  runner: Executor<Ready>;
  /** False while no new call may be made. */
  mayStart(): boolean;
  record(item: ClaimedItem, outcome: Outcome): void;
  /** A slot is free again, or the event loop has been round since waiting items were started. */
  onFree(): void;
}

/**
 * The modes of an item in a slot. The first abort decides the outcome, unless the tenure ends as well.
 *
 *     takes a slot ──► running ────────────── outcome ─────────────► done: recorded
 *                        │ batch cancelled                            ▲  ▲
 *                        ├─────────────────► cancelled ── lets go ────┘  │
 *                        │ stop, or no heartbeat for 30 s                │
 *                        ├─────────────────► stopped ──── lets go ───────┘
 *                        │
 *                        └── tenure ends (in every mode) ──► lost: its outcome is forgotten
 */
type Mode = 'running' | 'cancelled' | 'stopped' | 'lost' | 'done';

const TRANSITIONS: Transitions<Mode> = {
  running: ['cancelled', 'stopped', 'lost', 'done'],
  cancelled: ['lost', 'done'],
  stopped: ['lost', 'done'],
  lost: [],
  done: [],
};

interface Slot {
  mode: Mode;
  abort: AbortController;
}

/** The slots of a worker and the prepared items that wait for one. */
export interface Slots<Ready extends Waiting> {
  add(ready: Ready): void;
  /** Starts waiting items while slots are free, a few at once; `onFree` comes when there may be more to start. */
  fill(): void;
  /** Returns everything that waits. */
  giveBack(): void;
  /** Returns what has waited too long; true when there was any. */
  giveBackLate(): boolean;
  /** Ends what waits of a cancelled batch at once, and what runs of it by closing its calls. */
  cancel(batchId: string): void;
  /** Aborts all running calls; their items are released. */
  stop(): void;
  /** The tenure has ended: aborts everything and forgets it. */
  drop(): void;
  /** Items finished in the last 250 ms, if slots turn over faster than that; 0 with slow upstreams. */
  turnover(): number;
  running(): number;
  waiting(): number;
  waitingBytes(): number;
}

/** Slots that are all free. */
export function createSlots<Ready extends Waiting>(deps: SlotsDeps<Ready>): Slots<Ready> {
  const { clock, holdings, record } = deps;
  const ready = createSlotQueue<Ready & { readyAt: number }>();
  const transition = createTransition('slot', TRANSITIONS, deps.log);
  const running = new Map<ClaimedItem, Slot>();
  const finishedAt: number[] = [];
  let startsLeft = STARTS_AT_ONCE;

  const goOn = () => {
    startsLeft = STARTS_AT_ONCE;
    deps.onFree();
  };

  const start = (entry: Ready) => {
    const { item } = entry;
    const slot: Slot = { mode: 'running', abort: new AbortController() };
    running.set(item, slot);
    if (holdings.isCancelled(item.batch.id)) {
      deps.runner.abandon([entry]);
      return finish(item, slot, cancelled(item));
    }
    deps.runner.run(entry, slot.abort.signal).then(
      (outcome) => finish(item, slot, outcome),
      (error) => {
        deps.log.error({ err: reasonOf(error), batch: item.batch.id, idx: item.idx }, 'item failed unexpectedly');
        const again = item.loadFailures + 1 < MAX_FAULTS;
        const outcome = again
          ? released(item, FAULT_PAUSE_MS, { loadFailed: true, wait: { reason: 'retry_pause', text: 'internal' } })
          : refused(item, 'internal', 'internal');
        finish(item, slot, outcome);
      },
    );
  };

  const finish = (item: ClaimedItem, slot: Slot, outcome: Outcome) => {
    const { mode } = slot;
    if (mode === 'lost') return deps.runner.forget(outcome);
    slot.mode = transition(mode, 'done');
    running.delete(item);
    ready.done(item);
    finishedAt.push(clock.monotonic());
    record(item, outcome.kind === 'released' ? settleAborted(item, mode, outcome) : outcome);
    deps.onFree();
  };

  /** An aborted call ends as released; the reason for the abort decides what happens to the item. */
  const settleAborted = (item: ClaimedItem, mode: Mode, outcome: Extract<Outcome, { kind: 'released' }>): Outcome => {
    const made = { ...item, attempts: outcome.attempts };
    if (mode === 'cancelled') return cancelled(made);
    const lost = mode === 'stopped' && deps.neverTwice && made.attempts > item.attempts;
    return lost ? refused(made, 'worker_lost', 'interrupted: 1 worker lost') : outcome;
  };

  const giveBack = (entries: readonly Ready[]) => {
    if (entries.length === 0) return;
    deps.runner.abandon(entries);
    for (const { item } of entries) record(item, released(item, 0));
  };

  const abort = (slot: Slot, mode: 'cancelled' | 'stopped' | 'lost') => {
    if (slot.mode === 'running' || mode === 'lost') slot.mode = transition(slot.mode, mode);
    slot.abort.abort();
  };

  return {
    add: (entry) => ready.add(Object.assign(entry, { readyAt: clock.monotonic() })),
    fill() {
      while (startsLeft > 0 && running.size < deps.concurrency && deps.mayStart()) {
        const next = ready.take();
        if (!next) break;
        if (startsLeft-- === STARTS_AT_ONCE) setImmediate(goOn);
        start(next);
      }
    },
    giveBack: () => giveBack(ready.drain()),
    giveBackLate() {
      const since = clock.monotonic() - READY_MAX_MS;
      const entries = ready.drain();
      const late = entries.filter((entry) => entry.readyAt < since);
      for (const entry of entries) if (entry.readyAt >= since) ready.add(entry);
      giveBack(late);
      return late.length > 0;
    },
    cancel(batchId) {
      const entries = ready.drain(batchId);
      deps.runner.abandon(entries);
      for (const { item } of entries) record(item, cancelled(item));
      for (const [item, slot] of running) if (item.batch.id === batchId) abort(slot, 'cancelled');
    },
    stop() {
      for (const slot of running.values()) abort(slot, 'stopped');
    },
    drop() {
      ready.drain();
      for (const [item, slot] of running) {
        abort(slot, 'lost');
        ready.done(item);
      }
      running.clear();
    },
    turnover() {
      const since = clock.monotonic() - FINISHED_WINDOW_MS;
      let stale = 0;
      while (stale < finishedAt.length && finishedAt[stale]! < since) stale++;
      if (stale > 0) finishedAt.splice(0, stale);
      return finishedAt.length > deps.concurrency ? finishedAt.length : 0;
    },
    running: () => running.size,
    waiting: () => ready.size(),
    waitingBytes: () => ready.bytes(),
  };
}
