import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createByteBudget, type Receiver } from '../../../lib/upstream/budget.ts';

function receiver() {
  const one = { resumed: 0, resume: () => void one.resumed++ };
  return one;
}

test('lets every answer read on below the cap', () => {
  const budget = createByteBudget(100);
  const [a, b] = [receiver(), receiver()];
  expect(budget.take(a, 40)).toBe(true);
  expect(budget.take(b, 40)).toBe(true);
  expect(budget.held()).toBe(80);
});

test('pauses all but the oldest large answer above the cap, and resumes them as bytes are given back', () => {
  const budget = createByteBudget(100);
  const [a, b] = [receiver(), receiver()];
  budget.take(a, 60);
  expect(budget.take(b, 60)).toBe(false);
  expect(budget.take(a, 60)).toBe(true);
  budget.end(a, 120, 90);
  expect(b.resumed).toBe(1); // the oldest now: something must be able to finish
  expect(budget.take(b, 10)).toBe(true);
  budget.end(b, 70, 0);
  expect(budget.held()).toBe(90);
  budget.give(90);
  expect(budget.held()).toBe(0);
});

test('a third answer stays paused until the held bytes are below the cap', () => {
  const budget = createByteBudget(100);
  const [a, b, c] = [receiver(), receiver(), receiver()];
  budget.take(a, 100);
  budget.take(b, 1);
  budget.take(c, 1);
  budget.end(a, 100, 98);
  expect([b.resumed, c.resumed]).toEqual([1, 0]);
  budget.give(98);
  expect(c.resumed).toBe(1);
});

test('not even the oldest reads on while whole answers that wait for their commit fill the cap', () => {
  const budget = createByteBudget(100);
  const [a, b] = [receiver(), receiver()];
  budget.take(a, 100);
  budget.end(a, 100, 100);
  expect(budget.take(b, 1)).toBe(false);
  budget.give(100);
  expect(b.resumed).toBe(1);
});

test('never holds more than the cap, one more answer and what was on its way, and every answer ends', () => {
  const chunk = fc.integer({ min: 1, max: 50 });
  fc.assert(
    fc.property(
      fc.array(fc.array(chunk, { minLength: 1, maxLength: 20 }), { minLength: 1, maxLength: 30 }),
      (answers) => {
        const cap = 200;
        const budget = createByteBudget(cap);
        const calls = answers.map((chunks) => {
          const call = {
            chunks: [...chunks],
            taken: 0,
            paused: false,
            kept: 0,
            resume() {
              call.paused = false;
            },
          };
          return call satisfies Receiver & Record<string, unknown>;
        });
        const largest = Math.max(...answers.map((chunks) => chunks.reduce((a, b) => a + b, 0)));
        for (let rounds = 0; calls.some((call) => call.chunks.length > 0); rounds++) {
          expect(rounds).toBeLessThan(10_000);
          for (const call of calls) {
            if (call.paused || call.chunks.length === 0) continue;
            const bytes = call.chunks.shift()!;
            call.taken += bytes;
            call.paused = !budget.take(call, bytes);
            // Each paused call may have had one chunk on its way.
            expect(budget.held()).toBeLessThanOrEqual(cap + largest + 50 * calls.length);
            if (call.chunks.length > 0) continue;
            budget.end(call, call.taken, call.taken);
            budget.give(call.taken);
          }
        }
        expect(budget.held()).toBe(0);
      },
    ),
  );
});
