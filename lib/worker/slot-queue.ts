import type { ClaimedItem } from '../model/batch.ts';

/** Anything that waits for a slot on behalf of an item. */
export interface Waiting {
  item: ClaimedItem;
  body: Buffer;
}

/**
 * Items that are claimed, loaded and wait for a slot. A slot goes to the owner, then to the batch, with the fewest items in
 * slots of this worker. So items that were claimed ahead for a big batch do not hold up a small one.
 */
export interface SlotQueue<T extends Waiting> {
  add(entry: T): void;
  /** The next entry to run, which then counts as running; undefined when none waits. */
  take(): T | undefined;
  /** The item's slot is free again. */
  done(item: ClaimedItem): void;
  /** Removes and returns all waiting entries, or those of one batch. */
  drain(batchId?: string): T[];
  size(): number;
  bytes(): number;
}

interface BatchQueue<T> {
  owner: string;
  entries: T[];
  /** Index of the first entry not taken: shifting an array of thousands would be quadratic. */
  head: number;
  running: number;
}

export function createSlotQueue<T extends Waiting>(): SlotQueue<T> {
  const batches = new Map<string, BatchQueue<T>>();
  const running = new Map<string, number>();
  let size = 0;
  let bytes = 0;

  const pick = (): BatchQueue<T> | undefined => {
    let best: BatchQueue<T> | undefined;
    for (const batch of batches.values()) {
      if (batch.head === batch.entries.length) continue;
      if (!best) best = batch;
      else {
        const mine = running.get(batch.owner) ?? 0;
        const least = running.get(best.owner) ?? 0;
        if (mine < least || (mine === least && batch.running < best.running)) best = batch;
      }
    }
    return best;
  };

  const forget = (id: string, batch: BatchQueue<T>) => {
    if (batch.running === 0 && batch.head === batch.entries.length) batches.delete(id);
  };

  return {
    add(entry) {
      const { batch } = entry.item;
      let queue = batches.get(batch.id);
      if (!queue) {
        queue = { owner: batch.owner, entries: [], head: 0, running: 0 };
        batches.set(batch.id, queue);
      }
      queue.entries.push(entry);
      size++;
      bytes += entry.body.length;
    },
    take() {
      const queue = pick();
      if (!queue) return undefined;
      const entry = queue.entries[queue.head++]!;
      if (queue.head === queue.entries.length || queue.head > 1024) {
        queue.entries.splice(0, queue.head);
        queue.head = 0;
      }
      queue.running++;
      running.set(queue.owner, (running.get(queue.owner) ?? 0) + 1);
      size--;
      bytes -= entry.body.length;
      return entry;
    },
    done({ batch }) {
      const queue = batches.get(batch.id);
      if (queue) {
        queue.running--;
        forget(batch.id, queue);
      }
      const left = (running.get(batch.owner) ?? 1) - 1;
      if (left > 0) running.set(batch.owner, left);
      else running.delete(batch.owner);
    },
    drain(batchId) {
      const out: T[] = [];
      for (const [id, queue] of batches) {
        if (batchId !== undefined && id !== batchId) continue;
        for (const entry of queue.entries.slice(queue.head)) {
          size--;
          bytes -= entry.body.length;
          out.push(entry);
        }
        queue.entries = [];
        queue.head = 0;
        forget(id, queue);
      }
      return out;
    },
    size: () => size,
    bytes: () => bytes,
  };
}
