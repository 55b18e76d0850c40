import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Holdings } from './holdings.ts';
import { cancelled, type Outcome, released } from './item/outcome.ts';
import { isHeld } from './lease/tenure.ts';
import type { Loaded } from './load.ts';
import type { Waiting } from './slot-queue.ts';

/** Items and bytes that are read and prepared in one go. */
const LOAD_ITEMS = 256;
const LOAD_BYTES = 8 * 1024 * 1024;
/** Items of a chunk that could not be prepared, by a fault of our own, are tried again after this long. */
const RETRY_MS = 1000;
const NOT_PREPARED = { reason: 'retry_pause', text: 'internal' } as const;

/** Judges items; what the intake needs of `prepare.ts`. */
export interface Preparer<Ready extends Waiting> {
  /** Judges items that are claimed and loaded, and reserves their limits; in order, one result an item. */
  prepare(loaded: readonly Loaded[]): Promise<({ ready: Ready } | { item: ClaimedItem; outcome: Outcome })[]>;
  /** A prepared item will not be run in this claim: returns what was reserved for it. */
  abandon(ready: readonly Ready[]): void;
}

export interface IntakeDeps<Ready extends Waiting> {
  log: Log;
  holdings: Holdings;
  load(items: readonly ClaimedItem[]): Promise<Loaded[]>;
  runner: Preparer<Ready>;
  /** False while enough bodies wait for their slots. */
  hasRoom(): boolean;
  /** An item that waits for a slot from now on. */
  add(ready: Ready): void;
  /** The outcome of an item that gets no slot. */
  record(item: ClaimedItem, outcome: Outcome): void;
  /** A chunk is prepared: slots may be filled. */
  onPrepared(): void;
  /** No chunk is under way any more. */
  onPause(): void;
}

/** Reads and prepares claimed items, many at once, ahead of their slots. */
export interface Intake {
  add(items: readonly ClaimedItem[]): void;
  /** Continues, if anything is unread and there is room. */
  go(): void;
  /** Returns what is unread. */
  giveBack(): void;
  /** Forgets everything: the lease was lost. */
  clear(): void;
  busy(): boolean;
  /** Items unread or being prepared. */
  size(): number;
}

/** An intake with nothing in it. */
export function createIntake<Ready extends Waiting>(deps: IntakeDeps<Ready>): Intake {
  const { holdings, record } = deps;
  let unread: ClaimedItem[] = [];
  let preparing = 0;
  let loading = false;

  const load = async (): Promise<void> => {
    if (loading) return;
    loading = true;
    try {
      while (unread.length > 0 && deps.hasRoom()) {
        const tenure = holdings.tenure();
        const chunk = takeChunk();
        if (chunk.length === 0) continue;
        preparing += chunk.length;
        try {
          const prepared = await deps.runner.prepare(await deps.load(chunk));
          if (!isHeld(tenure)) continue;
          for (const one of prepared) {
            if ('outcome' in one) record(one.item, one.outcome);
            else if (holdings.isCancelled(one.ready.item.batch.id)) {
              deps.runner.abandon([one.ready]);
              record(one.ready.item, cancelled(one.ready.item));
            } else deps.add(one.ready);
          }
        } catch (error) {
          deps.log.warn({ err: reasonOf(error) }, 'items could not be prepared, released');
          if (isHeld(tenure)) for (const item of chunk) record(item, released(item, RETRY_MS, { wait: NOT_PREPARED }));
        } finally {
          if (isHeld(tenure)) preparing -= chunk.length;
        }
        deps.onPrepared();
      }
    } finally {
      loading = false;
      deps.onPause();
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
      const dead = holdings.isCancelled(item.batch.id);
      if (dead) record(item, cancelled(item));
      return !dead;
    });
  };

  return {
    add(items) {
      unread = unread.concat(items);
    },
    go() {
      if (unread.length > 0) void load();
    },
    giveBack() {
      for (const item of unread.splice(0)) record(item, released(item, 0));
    },
    clear() {
      unread = [];
      preparing = 0;
    },
    busy: () => loading,
    size: () => unread.length + preparing,
  };
}
