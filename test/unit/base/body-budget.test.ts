import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createBodyBudget } from '../../../lib/base/body-budget.ts';

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
