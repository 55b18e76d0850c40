import type { ClaimedItem } from '../batch/batch.ts';
import type { Clock } from '../clock.ts';
import { reasonOf } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Claimer } from './claim.ts';
import type { FinalItem, GroupCommit } from './commit.ts';
import type { Loaded } from './load.ts';
import { cancelled, type Outcome, refused, released } from './outcome.ts';
import { createReadyQueue, type Waiting } from './ready.ts';
import type { Releases } from './releases.ts';

/** Bodies read ahead of their slots, in bytes; items beyond it stay claimed but unread until there is room. */
const READ_AHEAD_BYTES = 32 * 1024 * 1024;
const LOAD_ITEMS = 256;
const LOAD_BYTES = 8 * 1024 * 1024;
/** An item that got no slot for this long goes back: the upstream has become slow, and another replica may be idle. */
const READY_MAX_MS = 10_000;
const FINISHED_WINDOW_MS = 250;
/** How long a claim that was given up may still be carried out: a Postgres that stood still has it in its buffers. */
const DOUBT_MS = 120_000;
/** Runs that may fail by a fault of our own before the item does: each may have been a call upstream. */
const MAX_FAULTS = 3;

/** Judges and runs items; what the engine needs of `prepare.ts` and `run.ts`. */
export interface ItemRunner<Ready extends Waiting> {
  /** Judges items that are claimed and loaded, and reserves their limits; in order, one result an item. */
  prepare(loaded: readonly Loaded[]): Promise<({ ready: Ready } | { item: ClaimedItem; outcome: Outcome })[]>;
  /** Runs one item to its outcome. Never throws for anything an upstream does. */
  run(ready: Ready, signal: AbortSignal): Promise<Outcome>;
  /** A prepared item will not be run in this claim: gives back what was reserved for it. */
  abandon(ready: readonly Ready[]): void;
  /** An outcome that came after the lease was lost is not recorded by us: lets go of its response. */
  forget(outcome: Outcome): void;
}

export interface EngineDeps<Ready extends Waiting> {
  clock: Clock;
  log: Log;
  concurrency: number;
  /** The lease is good and the stores take writes. */
  mayClaim(): boolean;
  /** The lease is not so old that others may have the items by now. */
  mayRun(): boolean;
  workerId(): string;
  /** RELAY_BATCH_ON_WORKER_LOSS=discard: a call that we cut off ourselves is not made again. */
  neverTwice: boolean;
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
  /** There may be work: claim if there is room. */
  wake(): void;
  /** The same, after `ms` milliseconds; a sooner one that is due already stays. */
  wakeIn(ms: number): void;
  /** Ends what this worker holds of a cancelled batch: waiting items at once, running ones by closing their calls. */
  cancelBatch(batchId: string): void;
  /** The group is recorded; its items are held no longer. */
  settled(items: readonly FinalItem[]): void;
  /** Released items are recorded; they are held no longer. */
  letGo(items: readonly ClaimedItem[]): void;
  heldBatches(): string[];
  /** Aborts all running calls; their items are released as soon as that can be recorded. */
  abortAll(): void;
  /** The lease was lost: aborts everything and forgets it. */
  dropAll(): void;
  /** Gives back items that have waited too long for a slot, and what a lost claim took; called with every beat. */
  tidy(): void;
  running(): number;
  waiting(): number;
  /**
   * Stops claiming, lets running items finish until the deadline, aborts and releases the rest, flushes. False when items
   * may be left that the database says are this worker's: its lease must then stay for a rescue to find them.
   */
  stop(deadlineMs: number): Promise<boolean>;
}

type Why = 'cancelled' | 'stopped' | 'lost';

/**
 * The slots of one worker. The way of an item through it:
 *
 *     claim -> load -> prepare -> ready -> slot (run) -> group commit | release
 *
 * Everything before the slot is done for many items at once; a slot is free as soon as the answer is in memory.
 */
export function createEngine<Ready extends Waiting>(deps: EngineDeps<Ready>): Engine {
  const ready = createReadyQueue<Ready & { readyAt: number }>();
  const running = new Map<ClaimedItem, { abort: AbortController; why: Why | null }>();
  /** Items held, by batch: claimed and not yet recorded. */
  const held = new Map<string, Set<number>>();
  const cancelledBatches = new Set<string>();
  const finishedAt: number[] = [];
  let unread: ClaimedItem[] = [];
  let preparing = 0;
  let generation = 0;
  let claiming = false;
  let loading = false;
  let wakeAgain = false;
  let unsure = false;
  let doubtEnds = Number.NEGATIVE_INFINITY;
  let stopping = false;
  let dueTimer: NodeJS.Timeout | null = null;
  let dueAt = 0;
  const idle: (() => void)[] = [];
  let nextDue: number | null = null;

  const checkRest = () => {
    if (deps.onRest && held.size === 0 && !claiming && !unsure && !stopping) deps.onRest(nextDue);
  };

  const hold = ({ batch, idx }: ClaimedItem) => {
    const items = held.get(batch.id);
    if (items) items.add(idx);
    else held.set(batch.id, new Set([idx]));
  };

  const unhold = ({ batch, idx }: ClaimedItem) => {
    const items = held.get(batch.id);
    if (!items?.delete(idx) || items.size > 0) return;
    held.delete(batch.id);
    cancelledBatches.delete(batch.id);
  };

  /** What finished in the last 250 ms, if slots turn over faster than that; 0 with slow upstreams. */
  const turnover = (): number => {
    const since = deps.clock.monotonic() - FINISHED_WINDOW_MS;
    let stale = 0;
    while (stale < finishedAt.length && finishedAt[stale]! < since) stale++;
    if (stale > 0) finishedAt.splice(0, stale);
    return finishedAt.length > deps.concurrency ? finishedAt.length : 0;
  };

  const room = (woken: boolean): number => {
    if (stopping || !deps.mayClaim() || deps.commits.full() || deps.releases.full()) return 0;
    const inHand = running.size + ready.size() + unread.length + preparing;
    const ahead = turnover();
    // A wake may use the whole allowance, the steady refill half of it: a new small batch then finds room at once.
    const want = deps.concurrency + (woken ? ahead : ahead >> 1) - inHand;
    // Claims of a handful cost as much as large ones: refill when half of what is ahead is used up.
    return woken || inHand - running.size <= ahead >> 2 ? want : 0;
  };

  const claim = async (): Promise<void> => {
    if (claiming) return;
    claiming = true;
    try {
      for (;;) {
        const woken = wakeAgain;
        wakeAgain = false;
        const want = room(woken);
        if (want <= 0) break;
        if (unsure) {
          await deps.claimer.releaseUnheld(deps.workerId(), held);
          unsure = false;
        }
        const mine = generation;
        const { items, more, nextDueMs } = await deps.claimer.claim(deps.workerId(), want);
        if (generation !== mine) {
          unsure = true;
          continue;
        }
        for (const item of items) hold(item);
        unread = unread.concat(items);
        if (stopping) giveBackUnread();
        else if (items.length > 0) void load();
        nextDue = nextDueMs;
        if (nextDueMs !== null) wakeIn(nextDueMs);
        if (!more && !wakeAgain) break;
      }
    } catch (error) {
      // The claim may have been committed all the same: what it took is given back before the next one. One that was only
      // given up may even be carried out later, so that is looked at again for a while.
      unsure = true;
      doubtEnds = deps.clock.monotonic() + DOUBT_MS;
      deps.log.warn({ err: reasonOf(error) }, 'claim failed');
      wakeIn(500);
    } finally {
      claiming = false;
      for (const id of cancelledBatches) if (!held.has(id)) cancelledBatches.delete(id);
      checkQuiet();
      checkRest();
    }
  };

  const wakeIn = (ms: number) => {
    const at = deps.clock.monotonic() + Math.min(Math.max(ms, 1), 60_000);
    if (stopping) return;
    if (dueTimer !== null && at >= dueAt) return;
    if (dueTimer !== null) clearTimeout(dueTimer);
    dueAt = at;
    dueTimer = setTimeout(
      () => {
        dueTimer = null;
        wake();
      },
      Math.min(Math.max(ms, 1), 60_000),
    );
  };

  const wake = () => {
    wakeAgain = true;
    void claim();
  };

  const load = async (): Promise<void> => {
    if (loading) return;
    loading = true;
    try {
      while (unread.length > 0 && (ready.size() === 0 || ready.bytes() < READ_AHEAD_BYTES)) {
        const mine = generation;
        const chunk = takeChunk();
        if (chunk.length === 0) continue;
        preparing += chunk.length;
        try {
          const prepared = await deps.runner.prepare(await deps.load(chunk));
          if (generation !== mine) continue;
          for (const one of prepared) {
            if ('outcome' in one) record(one.item, one.outcome);
            else if (cancelledBatches.has(one.ready.item.batch.id)) {
              deps.runner.abandon([one.ready]);
              record(one.ready.item, cancelled(one.ready.item));
            } else ready.add(Object.assign(one.ready, { readyAt: deps.clock.monotonic() }));
          }
        } catch (error) {
          deps.log.warn({ err: reasonOf(error) }, 'items could not be prepared, released');
          if (generation === mine) for (const item of chunk) record(item, released(item, 1000));
        } finally {
          if (generation === mine) preparing -= chunk.length;
        }
        fill();
      }
    } finally {
      loading = false;
      checkQuiet();
    }
  };

  const takeChunk = (): ClaimedItem[] => {
    let bytes = 0;
    let n = 0;
    while (n < unread.length && n < LOAD_ITEMS && (n === 0 || bytes + unread[n]!.inputLength <= LOAD_BYTES)) {
      bytes += unread[n++]!.inputLength;
    }
    const chunk = unread.slice(0, n);
    unread = unread.slice(n);
    return chunk.filter((item) => {
      const dead = cancelledBatches.has(item.batch.id);
      if (dead) record(item, cancelled(item));
      return !dead;
    });
  };

  const fill = () => {
    if (stopping || !deps.mayRun()) {
      giveBackUnread();
      return giveBack(ready.drain());
    }
    // Answers that cannot be recorded pile up in memory: no new calls until there is room (`settled` goes on).
    while (running.size < deps.concurrency && !deps.commits.full()) {
      const next = ready.take();
      if (!next) break;
      start(next);
    }
    if (unread.length > 0) void load();
    if (room(false) > 0) void claim();
  };

  const start = (entry: Ready) => {
    const { item } = entry;
    const slot = { abort: new AbortController(), why: null as Why | null };
    running.set(item, slot);
    const mine = generation;
    if (cancelledBatches.has(item.batch.id)) {
      deps.runner.abandon([entry]);
      return finish(mine, item, slot, cancelled(item));
    }
    deps.runner.run(entry, slot.abort.signal).then(
      (outcome) => finish(mine, item, slot, outcome),
      (error) => {
        deps.log.error({ err: reasonOf(error), batch: item.batch.id, idx: item.idx }, 'item failed unexpectedly');
        const again = item.loadFailures + 1 < MAX_FAULTS;
        const outcome = again ? released(item, 5000, { loadFailed: true }) : refused(item, 'internal', 'internal');
        finish(mine, item, slot, outcome);
      },
    );
  };

  const finish = (mine: number, item: ClaimedItem, slot: { why: Why | null }, outcome: Outcome) => {
    if (generation !== mine) return deps.runner.forget(outcome);
    running.delete(item);
    ready.done(item);
    finishedAt.push(deps.clock.monotonic());
    record(item, outcome.kind === 'released' ? settleAborted(item, slot.why, outcome) : outcome);
    fill();
    checkQuiet();
  };

  /** An aborted call comes back as released; why it was aborted decides what becomes of the item. */
  const settleAborted = (
    item: ClaimedItem,
    why: Why | null,
    outcome: Extract<Outcome, { kind: 'released' }>,
  ): Outcome => {
    const made = { ...item, attempts: outcome.attempts };
    if (why === 'cancelled') return cancelled(made);
    const lost = why === 'stopped' && deps.neverTwice && made.attempts > item.attempts;
    return lost ? refused(made, 'worker_lost', 'interrupted: 1 workers lost') : outcome;
  };

  const isQuiet = () => running.size === 0 && !claiming && !loading;
  const checkQuiet = () => {
    if (stopping && isQuiet()) for (const resolve of idle.splice(0)) resolve();
  };

  const record = (item: ClaimedItem, outcome: Outcome) => {
    if (outcome.kind === 'final') deps.commits.add({ item, outcome });
    else if (outcome.kind === 'released') deps.releases.add(item, outcome);
    else unhold(item);
  };

  const giveBack = (entries: readonly Ready[]) => {
    if (entries.length === 0) return;
    deps.runner.abandon(entries);
    for (const { item } of entries) record(item, released(item, 0));
  };

  const giveBackUnread = () => {
    for (const item of unread.splice(0)) record(item, released(item, 0));
  };

  const abort = (why: Why, batchId?: string) => {
    for (const [item, slot] of running) {
      if (batchId !== undefined && item.batch.id !== batchId) continue;
      slot.why ??= why;
      slot.abort.abort();
    }
  };

  return {
    wake,
    wakeIn,
    cancelBatch(batchId) {
      // A claim under way may be about to bring items of it.
      if (!held.has(batchId) && !claiming) return;
      cancelledBatches.add(batchId);
      if (unread.length > 0) void load();
      const entries = ready.drain(batchId);
      deps.runner.abandon(entries);
      for (const { item } of entries) record(item, cancelled(item));
      abort('cancelled', batchId);
    },
    settled(items) {
      for (const { item } of items) unhold(item);
      fill();
      checkRest();
    },
    letGo(items) {
      for (const item of items) unhold(item);
      if (deps.onRest) void claim(); // to learn when they are due
    },
    heldBatches: () => [...held.keys()],
    abortAll: () => abort('stopped'),
    dropAll() {
      generation++;
      abort('lost');
      ready.drain();
      for (const item of running.keys()) ready.done(item);
      running.clear();
      unread = [];
      preparing = 0;
      held.clear();
      unsure = false;
      doubtEnds = Number.NEGATIVE_INFINITY;
      cancelledBatches.clear();
      checkQuiet();
    },
    tidy() {
      const since = deps.clock.monotonic() - READY_MAX_MS;
      const entries = ready.drain();
      const late = entries.filter((entry) => entry.readyAt < since);
      for (const entry of entries) if (entry.readyAt >= since) ready.add(entry);
      giveBack(late);
      if (late.length > 0) giveBackUnread();
      if (stopping || deps.clock.monotonic() > doubtEnds) return;
      unsure = true;
      wake();
    },
    running: () => running.size,
    waiting: () => ready.size() + unread.length + preparing,
    async stop(deadlineMs) {
      stopping = true;
      if (dueTimer !== null) clearTimeout(dueTimer);
      giveBack(ready.drain());
      giveBackUnread();
      const timer = setTimeout(() => abort('stopped'), deadlineMs);
      if (!isQuiet()) await new Promise<void>((resolve) => idle.push(resolve));
      clearTimeout(timer);
      await Promise.all([deps.commits.flush(), deps.releases.flush()]);
      return held.size === 0 && !unsure;
    },
  };
}
