import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import type { OpenBatch } from '../../../lib/worker/claim.sql.ts';
import { planClaim } from '../../../lib/worker/fair.ts';
import { createSlotQueue } from '../../../lib/worker/slot-queue.ts';

const sum = (numbers: readonly number[]) => numbers.reduce((total, n) => total + n, 0);

const batches = fc
  .array(
    fc.record({
      owner: fc.constantFrom('ann', 'bob', 'eve'),
      fresh: fc.nat(30),
      running: fc.nat(20),
      due: fc.nat(6),
    }),
    { maxLength: 12 },
  )
  .map((all) => all.map((batch, i): OpenBatch => ({ ...batch, batchId: `batch-${String(i).padStart(2, '0')}` })));

/** The rule, step by step: each slot to the owner, then to that owner's batch, with the fewest running items. */
function naive(given: readonly OpenBatch[], slots: number) {
  const all = given.map((batch) => ({ ...batch, left: batch.fresh + batch.due, taken: 0 }));
  const runningOf = (owner: string) =>
    all.filter((batch) => batch.owner === owner).reduce((sum, { running }) => sum + running, 0);
  for (let free = slots; free > 0; free--) {
    const open = all.filter(({ left }) => left > 0);
    if (open.length === 0) break;
    open.sort(
      (a, b) =>
        runningOf(a.owner) - runningOf(b.owner) ||
        (a.owner < b.owner ? -1 : a.owner > b.owner ? 1 : 0) ||
        a.running - b.running ||
        (a.batchId < b.batchId ? -1 : 1),
    );
    const batch = open[0]!;
    batch.running++;
    batch.left--;
    batch.taken++;
  }
  return all;
}

describe('the plan of a claim', () => {
  test('is that of the rule done step by step', () => {
    fc.assert(
      fc.property(batches, fc.nat(200), (given, slots) => {
        const plan = planClaim(given, slots);
        const fresh = new Map(plan.batchIds.map((id, i) => [id, plan.counts[i]!]));
        let due = 0;
        for (const batch of naive(given, slots)) {
          due += Math.min(batch.taken, batch.due);
          expect(fresh.get(batch.batchId) ?? 0).toBe(Math.max(0, batch.taken - batch.due));
        }
        expect(sum(plan.due)).toBe(due);
      }),
      { numRuns: 300 },
    );
  });

  test('never takes more than asked or there, and wastes no slot while work is left', () => {
    fc.assert(
      fc.property(batches, fc.nat(400), (given, slots) => {
        const plan = planClaim(given, slots);
        const planned = sum(plan.counts) + sum(plan.due);
        const there = given.reduce((sum, { fresh, due }) => sum + fresh + due, 0);
        expect(planned).toBe(Math.min(slots, there));
        for (const [i, id] of plan.batchIds.entries()) {
          expect(plan.counts[i]! + plan.due[i]!).toBeGreaterThan(0);
          expect(plan.due[i]).toBeLessThanOrEqual(given.find(({ batchId }) => batchId === id)!.due);
          expect(plan.counts[i]).toBeLessThanOrEqual(given.find(({ batchId }) => batchId === id)!.fresh);
        }
        expect(new Set(plan.batchIds).size).toBe(plan.batchIds.length);
      }),
    );
  });

  test('leaves no owner more than one item ahead of another that still has work', () => {
    fc.assert(
      fc.property(batches, fc.nat(200), (given, slots) => {
        const after = naive(given, slots);
        const owners = [...new Set(given.map(({ owner }) => owner))].map((owner) => {
          const own = after.filter((batch) => batch.owner === owner);
          return {
            running: own.reduce((sum, { running }) => sum + running, 0),
            taken: own.reduce((sum, { taken }) => sum + taken, 0),
            hungry: own.some(({ left }) => left > 0),
          };
        });
        for (const rich of owners) {
          for (const poor of owners) {
            if (rich.taken > 0 && poor.hungry) expect(rich.running).toBeLessThanOrEqual(poor.running + 1);
          }
        }
      }),
    );
  });

  test('is empty for no slots and for no work', () => {
    const batch = { batchId: 'b', owner: 'ann', fresh: 3, running: 0, due: 1 };
    const empty = { batchIds: [], counts: [], due: [], passedOver: [] };
    expect(planClaim([batch], 0)).toEqual(empty);
    expect(planClaim([{ ...batch, fresh: 0, due: 0 }], 9)).toEqual(empty);
    expect(planClaim([], 9)).toEqual(empty);
  });

  test('names the batches that have items left while others have slots, and no others', () => {
    fc.assert(
      fc.property(batches, fc.nat(60), (given, slots) => {
        const after = naive(given, slots);
        const running = sum(after.map((batch) => batch.running));
        const passed = after.filter((batch) => batch.left > 0 && batch.running < running);
        expect(planClaim(given, slots).passedOver.sort()).toEqual(passed.map(({ batchId }) => batchId));
      }),
    );
  });
});

describe('the queue before the slots', () => {
  const entry = (batchId: string, owner: string, idx: number, size = 1) => ({
    item: { batch: { id: batchId, owner } as BatchContext, idx } as ClaimedItem,
    body: Buffer.alloc(size),
  });

  test('gives a slot to the owner, then to the batch, with the fewest running items, each batch in its order', () => {
    const operation = fc.oneof(
      fc.record({ kind: fc.constant('add' as const), batch: fc.nat(4), size: fc.nat(9) }),
      fc.constant({ kind: 'take' as const }),
      fc.record({ kind: fc.constant('done' as const), which: fc.nat(50) }),
      fc.record({ kind: fc.constant('drain' as const), batch: fc.option(fc.nat(4)) }),
    );
    fc.assert(
      fc.property(fc.array(operation, { maxLength: 120, size: 'max' }), (operations) => {
        const queue = createSlotQueue<ReturnType<typeof entry>>();
        let waiting: ReturnType<typeof entry>[] = [];
        const running: ReturnType<typeof entry>[] = [];
        const ownerOf = (batch: number) => `owner-${batch % 2}`;
        const count = (of: (one: ReturnType<typeof entry>) => boolean) => running.filter(of).length;
        let idx = 0;
        for (const op of operations) {
          if (op.kind === 'add') {
            const one = entry(`b${op.batch}`, ownerOf(op.batch), idx++, op.size);
            queue.add(one);
            waiting.push(one);
          } else if (op.kind === 'take') {
            const taken = queue.take();
            expect(taken === undefined).toBe(waiting.length === 0);
            if (!taken) continue;
            const { batch } = taken.item;
            const load = (b: BatchContext) => [
              count((one) => one.item.batch.owner === b.owner),
              count((one) => one.item.batch.id === b.id),
            ];
            const [own, same] = load(batch) as [number, number];
            for (const { item } of waiting) {
              const [theirs, those] = load(item.batch) as [number, number];
              expect(own < theirs || (own === theirs && same <= those)).toBe(true);
            }
            expect(waiting.find(({ item }) => item.batch.id === batch.id)).toBe(taken);
            waiting.splice(waiting.indexOf(taken), 1);
            running.push(taken);
          } else if (op.kind === 'done') {
            const [one] = running.splice(op.which % Math.max(1, running.length), 1);
            if (one) queue.done(one.item);
          } else {
            const id = op.batch === null ? undefined : `b${op.batch}`;
            const gone = waiting.filter(({ item }) => id === undefined || item.batch.id === id);
            waiting = waiting.filter((one) => !gone.includes(one));
            expect(new Set(queue.drain(id))).toEqual(new Set(gone));
          }
          expect(queue.size()).toBe(waiting.length);
          expect(queue.bytes()).toBe(waiting.reduce((sum, { body }) => sum + body.length, 0));
        }
      }),
    );
  });

  test('keeps its order over thousands of entries', () => {
    const queue = createSlotQueue<ReturnType<typeof entry>>();
    for (let idx = 0; idx < 5000; idx++) queue.add(entry('b', 'ann', idx));
    for (let idx = 0; idx < 5000; idx++) {
      const taken = queue.take()!;
      if (taken.item.idx !== idx) expect(taken.item.idx).toBe(idx);
      queue.done(taken.item);
    }
    expect([queue.take(), queue.size(), queue.bytes()]).toEqual([undefined, 0, 0]);
  });
});
