import { Readable } from 'node:stream';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { counted, createBodyBudget, reserveFor } from '../../../lib/base/body-budget.ts';

const refusal = (work: () => void): string | null => {
  try {
    work();
    return null;
  } catch (error) {
    return (error as { code: string }).code;
  }
};

test('lets one owner fill half of it, and another the rest with one body', () => {
  const budget = createBodyBudget(100);
  const [first, second, third] = [budget.open('ann'), budget.open('ann'), budget.open('bob')];
  first.reserve(30);
  second.reserve(20);
  expect(refusal(() => second.reserve(21))).toBe('overloaded');
  expect(budget.held()).toBe(50);
  third.reserve(50);
  expect(refusal(() => budget.open('eve').reserve(1))).toBe('overloaded');
  first.close();
  expect(budget.held()).toBe(70);
  second.close();
  third.close();
  expect(budget.held()).toBe(0);
});

test('counts a repeated or smaller amount once', () => {
  const budget = createBodyBudget(100);
  const account = budget.open('ann');
  account.reserve(40);
  account.reserve(40);
  account.reserve(10);
  expect(budget.held()).toBe(40);
  account.close();
  account.close();
  expect(budget.held()).toBe(0);
});

test('never holds more than the cap, nor lets one owner take more than it leaves with a second body', () => {
  const step = fc.record({
    owner: fc.constantFrom('a', 'b', 'c'),
    bytes: fc.integer({ min: 1, max: 60 }),
    end: fc.boolean(),
  });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const budget = createBodyBudget(100);
      const accounts: { owner: string; bytes: number; close(): void }[] = [];
      for (const { owner, bytes, end } of steps) {
        if (end) accounts.shift()?.close();
        const account = budget.open(owner);
        const own = accounts.filter((one) => one.owner === owner).reduce((sum, one) => sum + one.bytes, 0);
        const held = budget.held();
        if (refusal(() => account.reserve(bytes)) === null) {
          accounts.push({ owner, bytes, close: account.close });
          expect(budget.held()).toBeLessThanOrEqual(100);
          if (own > 0) expect(own + bytes).toBeLessThanOrEqual(100 - budget.held());
        } else {
          expect(held + bytes > 100 || (own > 0 && own + bytes > 100 - held - bytes)).toBe(true);
        }
      }
      for (const account of accounts) account.close();
      expect(budget.held()).toBe(0);
    }),
  );
});

test('counts the parts of a request for themselves, and frees them together', () => {
  const budget = createBodyBudget(100);
  const account = budget.open('ann');
  const stream = account.part();
  account.reserve(40);
  stream(30);
  stream(20);
  account.reserve(60);
  expect(budget.held()).toBe(90);
  expect(refusal(() => stream(41))).toBe('overloaded');
  account.close();
  expect(budget.held()).toBe(0);
});

test('counts of a stream what may be on its way, in steps, and all of it beyond a few of them', async () => {
  const MIB = 1024 * 1024;
  const reserved: number[] = [];
  const chunks = Array.from({ length: 6 }, () => Buffer.alloc(MIB));
  const source = counted(Readable.from(chunks), (bytes) => void reserved.push(bytes / MIB), 10 * MIB);
  const passed: Uint8Array[] = [];
  for await (const chunk of source) passed.push(chunk);
  expect(passed).toEqual(chunks);
  expect(reserved).toEqual([1, 2, 3, 4, 10, 10]);
  expect(reserveFor(1, 100)).toBe(100);
});
