import type { OpenBatch } from './claim.sql.ts';

/** How many fresh items (`counts`) and how many released ones (`due`) to claim of each batch. */
export interface ClaimPlan {
  batchIds: string[];
  counts: number[];
  due: number[];
  /** Batches that have items left because others have slots, or get them now: what is left of them waits for its share. */
  passedOver: string[];
}

/** A heartbeat carries the passed over batches, 16 bytes each. */
const MAX_PASSED_OVER = 1000;

/**
 * Spreads free slots: each goes to the owner, then to that owner's batch, with the fewest running items; ties go to the
 * older batch. Released items that are due count as their batch's own and are preferred there, since they have waited.
 * O((slots + batches) log batches).
 */
export function planClaim(batches: readonly OpenBatch[], slots: number): ClaimPlan {
  const owners = new Map<string, Owner>();
  for (const batch of batches) {
    let owner = owners.get(batch.owner);
    if (!owner) {
      owner = { name: batch.owner, running: 0, heap: [] };
      owners.set(batch.owner, owner);
    }
    owner.running += batch.running;
    const left = batch.fresh + batch.due;
    if (left > 0) push(owner.heap, { batch, running: batch.running, left, fresh: 0, due: 0 }, batchBefore);
  }
  const queue: Owner[] = [];
  for (const owner of owners.values()) if (owner.heap.length > 0) push(queue, owner, ownerBefore);

  const touched = new Set<Share>();
  let free = slots;
  while (free > 0 && queue.length > 0) {
    const owner = pop(queue, ownerBefore);
    const share = pop(owner.heap, batchBefore);
    touched.add(share);
    if (share.due < share.batch.due) share.due++;
    else share.fresh++;
    share.running++;
    share.left--;
    owner.running++;
    free--;
    if (share.left > 0) push(owner.heap, share, batchBefore);
    if (owner.heap.length > 0) push(queue, owner, ownerBefore);
  }

  const plan: ClaimPlan = { batchIds: [], counts: [], due: [], passedOver: [] };
  for (const share of touched) {
    plan.batchIds.push(share.batch.batchId);
    plan.counts.push(share.fresh);
    plan.due.push(share.due);
  }
  let running = 0;
  for (const owner of owners.values()) running += owner.running;
  for (const owner of owners.values()) {
    for (const share of owner.heap) {
      if (plan.passedOver.length === MAX_PASSED_OVER) return plan;
      if (share.running < running) plan.passedOver.push(share.batch.batchId);
    }
  }
  return plan;
}

interface Share {
  batch: OpenBatch;
  running: number;
  left: number;
  fresh: number;
  due: number;
}

interface Owner {
  name: string;
  running: number;
  heap: Share[];
}

type Before<T> = (a: T, b: T) => boolean;

const batchBefore: Before<Share> = (a, b) =>
  a.running !== b.running ? a.running < b.running : a.batch.batchId < b.batch.batchId;
const ownerBefore: Before<Owner> = (a, b) => (a.running !== b.running ? a.running < b.running : a.name < b.name);

function push<T>(heap: T[], value: T, before: Before<T>): void {
  let at = heap.push(value) - 1;
  while (at > 0) {
    const parent = (at - 1) >> 1;
    if (!before(value, heap[parent]!)) break;
    heap[at] = heap[parent]!;
    at = parent;
  }
  heap[at] = value;
}

function pop<T>(heap: T[], before: Before<T>): T {
  const top = heap[0]!;
  const last = heap.pop()!;
  if (heap.length === 0) return top;
  let at = 0;
  for (;;) {
    let child = 2 * at + 1;
    if (child >= heap.length) break;
    if (child + 1 < heap.length && before(heap[child + 1]!, heap[child]!)) child++;
    if (!before(heap[child]!, last)) break;
    heap[at] = heap[child]!;
    at = child;
  }
  heap[at] = last;
  return top;
}
