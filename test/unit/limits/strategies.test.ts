import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { Strategy } from '../../../lib/model/catalog.ts';
import {
  add,
  type BucketState,
  current,
  FRESH,
  giveBack,
  roll,
  room,
  waitSeconds,
} from '../../support/limits-reference.ts';

const ALL: Strategy[] = ['token-bucket', 'leaky-bucket', 'fixed-window', 'sliding-window', 'session-window'];
const START = 1_800_000_000_000_000;
const SECOND = 1_000_000;

interface Rule {
  meter: 'requests' | 'tokens';
  amount: number;
  window: number;
  strategy: Strategy;
}

const rules = (strategies: Strategy[]): fc.Arbitrary<Rule> =>
  fc.record({
    meter: fc.constant('requests' as const),
    amount: fc.integer({ min: 1, max: 20 }),
    window: fc.integer({ min: 1, max: 90 }),
    strategy: fc.constantFrom(...strategies),
  });
/** Pauses in microseconds between requests: bursts, fractions of a window, whole windows, whole seconds. */
const pauses = fc.array(
  fc.oneof(
    fc.constant(0),
    fc.integer({ min: 1, max: 200_000_000 }),
    fc.integer({ min: 1, max: 200 }).map((s) => s * SECOND),
  ),
  { minLength: 1, maxLength: 60 },
);

/** Sends one request after each pause; returns the times of those that passed, and the bucket at the end. */
function run(rule: Rule, waits: readonly number[]): { passed: number[]; state: BucketState; nowUs: number } {
  let state = FRESH;
  let nowUs = START;
  const passed: number[] = [];
  for (const wait of waits) {
    nowUs += wait;
    state = roll(rule, state, nowUs);
    if (room(rule, state, nowUs) < 1) continue;
    passed.push(nowUs);
    state = add(state, 1);
  }
  return { passed, state, nowUs };
}

describe('strategies of request limits', () => {
  test.each(['fixed-window', 'sliding-window'] as const)(
    '%s never passes more than the amount in an aligned window',
    (strategy) => {
      fc.assert(
        fc.property(rules([strategy]), pauses, (rule, waits) => {
          const windows = new Map<number, number>();
          for (const at of run(rule, waits).passed) {
            const window = Math.floor(at / (rule.window * SECOND));
            windows.set(window, (windows.get(window) ?? 0) + 1);
          }
          expect(Math.max(0, ...windows.values())).toBeLessThanOrEqual(rule.amount);
        }),
      );
    },
  );

  test('session-window never passes more than the amount from one first request to the end of its window', () => {
    fc.assert(
      fc.property(rules(['session-window']), pauses, (rule, waits) => {
        let anchor = Number.NEGATIVE_INFINITY;
        let count = 0;
        for (const at of run(rule, waits).passed) {
          if (at - anchor >= rule.window * SECOND) [anchor, count] = [at, 0];
          expect(++count).toBeLessThanOrEqual(rule.amount);
        }
      }),
    );
  });

  test.each(['token-bucket', 'leaky-bucket'] as const)(
    '%s never passes more than the amount and what came free since, from any request on',
    (strategy) => {
      fc.assert(
        fc.property(rules([strategy]), pauses, (rule, waits) => {
          const { passed } = run(rule, waits);
          for (let i = 0; i < passed.length; i++) {
            for (let j = i; j < passed.length; j++) {
              const free = ((passed[j]! - passed[i]!) * rule.amount) / (rule.window * SECOND);
              expect(j - i + 1).toBeLessThanOrEqual(rule.amount + free + 1e-6);
            }
          }
        }),
      );
    },
  );

  test('who waits as told passes, and a second earlier would not', () => {
    fc.assert(
      fc.property(rules(ALL), pauses, (rule, waits) => {
        const { state, nowUs } = run(rule, waits);
        const full = add(state, room(rule, roll(rule, state, nowUs), nowUs));
        const seconds = waitSeconds(rule, full, nowUs);
        const passesAfter = (s: number) => {
          const at = nowUs + s * SECOND;
          return room(rule, roll(rule, full, at), at) >= 1;
        };
        expect(passesAfter(seconds)).toBe(true);
        if (seconds > 1) expect(passesAfter(seconds - 1)).toBe(false);
      }),
    );
  });

  test('a token meter over its amount is under it after the wait, and not a second earlier', () => {
    const meters = fc.record({
      meter: fc.constant('tokens' as const),
      amount: fc.integer({ min: 1, max: 1000 }),
      window: fc.integer({ min: 2, max: 90 }),
      strategy: fc.constantFrom<Strategy>('fixed-window', 'sliding-window'),
    });
    const counts = fc.integer({ min: 0, max: 5000 });
    fc.assert(
      fc.property(meters, counts, counts, fc.nat(), (rule, used, before, offset) => {
        const window = rule.window * SECOND;
        const anchorUs = START - (START % window);
        const nowUs = anchorUs + (offset % window);
        const state = { used, previous: rule.strategy === 'sliding-window' ? before : 0, anchorUs };
        fc.pre(room(rule, state, nowUs) === 0);
        const seconds = waitSeconds(rule, state, nowUs);
        const currentAfter = (s: number) => current(rule, roll(rule, state, nowUs + s * SECOND), nowUs + s * SECOND);
        expect(currentAfter(seconds)).toBeLessThan(rule.amount);
        if (seconds > 1) expect(currentAfter(seconds - 1)).toBeGreaterThanOrEqual(rule.amount);
      }),
    );
  });

  test('a refund never gives back more than the request took, whenever it comes', () => {
    const times = fc.array(fc.integer({ min: 0, max: 300 * SECOND }), { maxLength: 20 });
    const offset = fc.integer({ min: 0, max: 300 * SECOND });
    // A session that the refunded request began is left out: it does end earlier than one that began later.
    const timeless = rules(['token-bucket', 'leaky-bucket', 'fixed-window', 'sliding-window']);
    fc.assert(
      fc.property(timeless, times, offset, offset, (rule, others, took, back) => {
        const events: { at: number; kind: 'other' | 'took' | 'back' }[] = [
          ...others.map((at) => ({ at, kind: 'other' as const })),
          { at: took, kind: 'took' },
          { at: Math.max(took, back), kind: 'back' },
        ];
        events.sort((a, b) => a.at - b.at);
        let without = FRESH;
        let refunded = FRESH;
        for (const { at, kind } of events) {
          const nowUs = START + at;
          without = roll(rule, without, nowUs);
          refunded = roll(rule, refunded, nowUs);
          if (kind === 'other') without = add(without, 1);
          if (kind !== 'back') refunded = add(refunded, 1);
          else refunded = giveBack(rule, refunded, nowUs, START + took);
        }
        expect(refunded.used).toBeGreaterThanOrEqual(without.used - 1e-6);
        expect(refunded.previous).toBeGreaterThanOrEqual(without.previous);
      }),
    );
  });

  test('a refund at once gives the whole request back', () => {
    fc.assert(
      fc.property(rules(ALL), pauses, (rule, waits) => {
        const { state, nowUs } = run(rule, waits);
        const before = roll(rule, state, nowUs);
        const after = giveBack(rule, add(before, 1), nowUs, nowUs);
        expect(room(rule, roll(rule, after, nowUs), nowUs)).toBe(room(rule, before, nowUs));
      }),
    );
  });
});
