import type { ClaimedItem } from '../model/batch.ts';
import { NO_TENURE, type Tenure } from './lease/tenure.ts';

/**
 * The items that one worker holds in the present tenure, claimed and not yet recorded, and which of their batches were
 * cancelled.
 */
export interface Holdings {
  add(item: ClaimedItem): void;
  remove(item: ClaimedItem): void;
  /** The indexes held, by batch; without batches of which nothing is held. */
  byBatch(): ReadonlyMap<string, ReadonlySet<number>>;
  /** The batches of which something is held. */
  batchIds(): string[];
  /** The batch was cancelled: remembered while any of its items is held. */
  cancel(batchId: string): void;
  isCancelled(batchId: string): boolean;
  /** Forgets cancelled batches of which no claim brought anything. */
  prune(): void;
  /** The tenure in which everything held was claimed. It may have ended: then nothing is held. */
  tenure(): Tenure;
  /** A tenure begins, with nothing held. */
  begin(tenure: Tenure): void;
  /** The tenure has ended: nothing is held any more. */
  clear(): void;
}

/** Holdings of a worker before its first tenure. */
export function createHoldings(): Holdings {
  const held = new Map<string, Set<number>>();
  const cancelled = new Set<string>();
  let tenure = NO_TENURE;

  return {
    add({ batch, idx }) {
      const items = held.get(batch.id);
      if (items) items.add(idx);
      else held.set(batch.id, new Set([idx]));
    },
    remove({ batch, idx }) {
      const items = held.get(batch.id);
      if (!items?.delete(idx) || items.size > 0) return;
      held.delete(batch.id);
      cancelled.delete(batch.id);
    },
    byBatch: () => held,
    batchIds: () => [...held.keys()],
    cancel: (batchId) => void cancelled.add(batchId),
    isCancelled: (batchId) => cancelled.has(batchId),
    prune() {
      for (const id of cancelled) if (!held.has(id)) cancelled.delete(id);
    },
    tenure: () => tenure,
    begin(next) {
      tenure = next;
    },
    clear() {
      held.clear();
      cancelled.clear();
    },
  };
}
