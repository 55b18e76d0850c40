import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  BREAKER_EFFECTS,
  type Breaker,
  type BreakerEvent,
  type ModelState,
  nextKeyBreaker,
  nextModelState,
} from '../../../lib/keypool/breaker.ts';
import { CALLED, type Failure } from '../../../lib/keypool/failures.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';

const NOW = 1_000_000;
const CLASSES = Object.keys(BREAKER_EFFECTS) as CallClass[];
const event = (cls: CallClass, more: Partial<BreakerEvent> = {}): BreakerEvent => ({
  class: cls,
  startedAt: NOW,
  retryAfterMs: null,
  probe: false,
  ...more,
});
const open = (more: Partial<Breaker> = {}): Breaker => ({ reason: 'server_error', step: 2, openUntil: NOW, ...more });
const failure = (idx: number, batchId = 'a', at = NOW): Failure => ({ batchId, idx, at });
const CLOSED: ModelState = { breaker: null, failures: [] };

/** The state after the failures one by one, each at its own moment. */
function failing(failures: readonly Failure[], from = CLOSED): ModelState {
  return failures.reduce((state, one) => nextModelState(state, event('server_error'), [one], one.at), from);
}

describe('the breaker of a key', () => {
  test.each<[string, BreakerEvent, Breaker | null]>([
    ['401 opens it without end', event('auth'), { reason: 'auth', step: 0, openUntil: Number.POSITIVE_INFINITY }],
    ['no credit opens it for 10 min', event('account'), { reason: 'account', step: 0, openUntil: NOW + 600_000 }],
    ['403 leaves it alone', event('forbidden'), null],
    ['429 with a short Retry-After or none leaves it alone', event('rate_limit_short', { retryAfterMs: 5000 }), null],
    [
      '429 with a long Retry-After opens it for that time',
      event('rate_limit_long', { retryAfterMs: 42_000 }),
      { reason: 'rate_limit', step: 0, openUntil: NOW + 42_000 },
    ],
    ['500-599 leaves it alone', event('server_error'), null],
    ['a broken connection leaves it alone', event('network'), null],
    ['an unreachable host leaves it alone', event('unreachable'), null],
    ['item timeout leaves it alone', event('timeout'), null],
    ['cancel and shutdown leave it alone', event('aborted'), null],
    ['any other status leaves it closed', event('client_error'), null],
    ['a success leaves it closed', event('success'), null],
  ])('%s', (_row, given, expected) => {
    expect(nextKeyBreaker(null, given, NOW)).toEqual(expected);
  });

  test.each(['success', 'client_error', 'bad_response', 'too_large'] as const)(
    'a call in flight that ends in %s closes it',
    (cls) => {
      const breaker = open({ reason: 'rate_limit', openUntil: NOW + 5000 });
      expect(nextKeyBreaker(breaker, event(cls, { startedAt: NOW - 60_000 }), NOW)).toBeNull();
    },
  );

  test('one of the previous release for 5xx is closed by a success, and steps no further', () => {
    const left = open({ openUntil: NOW - 1 });
    expect(nextKeyBreaker(left, event('server_error', { probe: true }), NOW)).toBe(left);
    expect(nextKeyBreaker(left, event('success', { probe: true }), NOW)).toBeNull();
  });

  test('after a 401 nothing closes it, a success in flight neither', () => {
    const auth = open({ reason: 'auth', openUntil: Number.POSITIVE_INFINITY });
    for (const cls of CLASSES) expect(nextKeyBreaker(auth, event(cls, { probe: true }), NOW)).toBe(auth);
  });

  test('a 401 in flight takes over', () => {
    const given = open({ reason: 'account', openUntil: NOW + 5000 });
    const next = nextKeyBreaker(given, event('auth', { startedAt: NOW - 1 }), NOW);
    expect(next).toMatchObject({ reason: 'auth', openUntil: Number.POSITIVE_INFINITY });
  });

  test('without credit only its probe closes it, and calls in flight do not make it longer', () => {
    const account = open({ reason: 'account', openUntil: NOW + 5000 });
    const early = { startedAt: NOW - 1 };
    for (const cls of ['success', 'account', 'rate_limit_long'] as const) {
      expect(nextKeyBreaker(account, event(cls, { ...early, retryAfterMs: 9_000_000 }), NOW)).toBe(account);
    }
    const over = open({ reason: 'account' });
    expect(nextKeyBreaker(over, event('success', { probe: true }), NOW)).toBeNull();
    expect(nextKeyBreaker(over, event('account', { probe: true }), NOW)).toMatchObject({ openUntil: NOW + 600_000 });
  });

  test('a longer Retry-After in flight extends it, the rest of the storm does not', () => {
    const breaker = open({ reason: 'rate_limit', openUntil: NOW + 30_000 });
    const late = { startedAt: NOW - 1, retryAfterMs: 30_900 };
    expect(nextKeyBreaker(breaker, event('rate_limit_long', late), NOW)).toBe(breaker);
    const longer = event('rate_limit_long', { ...late, retryAfterMs: 60_000 });
    expect(nextKeyBreaker(breaker, longer, NOW)).toEqual({ reason: 'rate_limit', step: 2, openUntil: NOW + 60_000 });
  });

  test('a Retry-After of centuries becomes a month', () => {
    const next = nextKeyBreaker(null, event('rate_limit_long', { retryAfterMs: 1e18 }), NOW);
    expect(next?.openUntil).toBe(NOW + 30 * 86_400_000);
  });
});

describe('the breaker of a model, closed', () => {
  const opened = { breaker: { reason: 'server_error', step: 1, openUntil: NOW + 1000 }, failures: [] };

  test('opens at the failures of three items of the only batch', () => {
    expect(failing([failure(0), failure(1)]).breaker).toBeNull();
    expect(failing([failure(0), failure(1), failure(2)])).toEqual(opened);
  });

  test('never opens on the tries of one item, nor of two', () => {
    const tries = Array.from({ length: 60 }, (_, i) => failure(i % 2, 'a', NOW + i));
    expect(failing(tries).breaker).toBeNull();
  });

  test('opens at items of two batches only, when two called', () => {
    const many = Array.from({ length: 30 }, (_, idx) => failure(idx));
    const state = failing([failure(CALLED, 'b'), ...many]);
    expect(state.breaker).toBeNull();
    expect(failing([failure(0, 'b')], state)).toEqual(opened);
  });

  test('opens at items of one batch once the other has not called for 10 s', () => {
    const later = NOW + 10_000;
    const state = failing([failure(CALLED, 'b'), failure(0), failure(1, 'a', later - 1), failure(2, 'a', later - 1)]);
    expect(state.breaker).toBeNull();
    expect(failing([failure(3, 'a', later)], state).breaker).toMatchObject({ step: 1, openUntil: later + 1000 });
  });

  test('ignores failures that are 10 s old', () => {
    const late = NOW + 10_000;
    expect(failing([failure(0), failure(1), failure(2, 'a', late)]).breaker).toBeNull();
    expect(failing([failure(0), failure(1), failure(2, 'a', late - 1)]).breaker).not.toBeNull();
  });

  test.each(['success', 'client_error', 'bad_response', 'too_large'] as const)(
    'forgets its failures at a %s',
    (cls) => {
      const before = failing([failure(0), failure(1)]);
      const between = nextModelState(before, event(cls), [], NOW);
      expect(between).toEqual(CLOSED);
      expect(failing([failure(2)], between).breaker).toBeNull();
      expect(failing([failure(2)], before).breaker).not.toBeNull();
    },
  );

  test.each(['auth', 'account', 'rate_limit_long', 'rate_limit_short', 'unreachable', 'timeout', 'aborted'] as const)(
    '%s leaves it alone',
    (cls) => {
      for (const state of [CLOSED, failing([failure(0)]), { breaker: open(), failures: [] }]) {
        expect(nextModelState(state, event(cls, { probe: true, retryAfterMs: 9000 }), [], NOW)).toBe(state);
      }
    },
  );

  test('a broken connection counts as a 5xx, and names the reason', () => {
    const before = failing([failure(0), failure(1)]);
    expect(nextModelState(before, event('network'), [failure(2)], NOW).breaker).toMatchObject({ reason: 'network' });
  });
});

describe('the breaker of a model, open', () => {
  const state = (more: Partial<Breaker> = {}): ModelState => ({ breaker: open(more), failures: [] });

  test('64 calls that fail together are one failure', () => {
    const next = failing(Array.from({ length: 64 }, (_, idx) => failure(idx, 'a', NOW + idx)));
    expect(next.breaker).toEqual({ reason: 'server_error', step: 1, openUntil: NOW + 2 + 1000 });
  });

  test('only the failure of its probe makes it longer: 1, 2, 4, 8, 16, 32, 60 s, then 60', () => {
    let now = NOW;
    let next = failing([failure(0), failure(1), failure(2)]);
    const delays = Array.from({ length: 9 }, (_, i) => {
      if (i > 0) {
        expect(nextModelState(next, event('server_error', { startedAt: now }), [failure(9)], now)).toBe(next);
        next = nextModelState(next, event('server_error', { startedAt: now, probe: true }), [failure(9)], now);
      }
      const delay = next.breaker!.openUntil - now;
      now = next.breaker!.openUntil;
      return delay / 1000;
    });
    expect(delays).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
  });

  test('the failed probe counts although its own clock says it was sent too early', () => {
    const next = nextModelState(state({ openUntil: NOW + 3 }), event('server_error', { probe: true }), [], NOW + 10);
    expect(next.breaker).toMatchObject({ step: 3, openUntil: NOW + 10 + 4000 });
  });

  test('a success in flight closes it', () => {
    const early = event('success', { startedAt: NOW - 60_000 });
    expect(nextModelState(state({ openUntil: NOW + 5000 }), early, [], NOW)).toEqual(CLOSED);
  });

  test('a 403 rests the model for 60 s; 403s in flight do not make it longer, nor does a success end it', () => {
    const resting = nextModelState(CLOSED, event('forbidden'), [], NOW);
    expect(resting.breaker).toEqual({ reason: 'forbidden', step: 0, openUntil: NOW + 60_000 });
    expect(nextModelState(resting, event('forbidden', { startedAt: NOW - 5 }), [], NOW + 50)).toBe(resting);
    expect(nextModelState(resting, event('success', { startedAt: NOW - 5 }), [], NOW + 50)).toBe(resting);
    const later = NOW + 60_000;
    const again = nextModelState(resting, event('forbidden', { startedAt: later }), [], later + 50);
    expect(again.breaker).toMatchObject({ openUntil: later + 60_050 });
    const items = [failure(0, 'a', later), failure(1, 'a', later), failure(2, 'a', later)];
    expect(failing(items, resting).breaker).toMatchObject({ reason: 'server_error', step: 1 });
  });
});

describe('properties', () => {
  const events = fc.array(
    fc.record({
      class: fc.constantFrom(...CLASSES),
      ageMs: fc.integer({ min: 0, max: 5000 }),
      waitMs: fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 70_000 })),
      retryAfterMs: fc.option(fc.integer({ min: 0, max: 1e12 })),
      probe: fc.boolean(),
      item: fc.nat(3),
      batch: fc.constantFrom('a', 'b'),
    }),
    { maxLength: 40 },
  );

  test('steps stay in 0..7 and go up by one at most; only success closes; no failure shortens; 401 holds', () => {
    fc.assert(
      fc.property(events, (list) => {
        let now = NOW;
        let key: Breaker | null = null;
        let model = CLOSED;
        for (const { item, batch, ...one } of list) {
          now += one.waitMs;
          const given = { ...one, startedAt: now - one.ageMs };
          const nextKey = nextKeyBreaker(key, given, now);
          const nextModel = nextModelState(model, given, [failure(item, batch, now)], now);
          for (const [before, after] of [
            [key, nextKey],
            [model.breaker, nextModel.breaker],
          ] as const) {
            expect(after?.step ?? 0).toBeLessThanOrEqual(Math.min(7, (before?.step ?? 0) + 1));
            if (before !== null && after === null) expect(BREAKER_EFFECTS[one.class]).toBe('close');
            if (before !== null && after !== null) expect(after.openUntil).toBeGreaterThanOrEqual(before.openUntil);
            if (before?.reason === 'auth') expect(after).toBe(before);
          }
          expect(nextModel.failures.length).toBeLessThanOrEqual(5);
          key = nextKey;
          model = nextModel;
        }
      }),
    );
  });

  test('whatever fails, fewer than three items open nothing, and one batch beside another opens nothing', () => {
    const failures = fc.array(
      fc.record({ idx: fc.nat(20), batchId: fc.constantFrom('a', 'b', 'c'), gap: fc.nat(3000), called: fc.boolean() }),
      { maxLength: 40 },
    );
    fc.assert(
      fc.property(failures, (list) => {
        const all: Failure[] = [];
        let state = CLOSED;
        let now = NOW;
        for (const { idx, batchId, gap, called } of list) {
          now += gap;
          const one = failure(called ? CALLED : idx, batchId, now);
          all.push(one);
          if (called) {
            state = { ...state, failures: [...state.failures, one] };
            continue;
          }
          state = nextModelState(state, event('server_error'), [one], now);
          const recent = all.filter(({ at }) => at > now - 10_000);
          const failed = recent.filter((one) => one.idx !== CALLED);
          const items = new Set(failed.map((one) => `${one.batchId} ${one.idx}`)).size;
          const failing = new Set(failed.map((one) => one.batchId)).size;
          const callers = new Set(recent.map((one) => one.batchId)).size;
          expect(state.breaker !== null).toBe(items >= 3 && (failing > 1 || callers < 2));
          if (state.breaker !== null) {
            state = CLOSED;
            all.length = 0;
          }
        }
      }),
    );
  });
});
