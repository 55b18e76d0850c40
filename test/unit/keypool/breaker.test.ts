import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  BREAKER_EFFECTS,
  type Breaker,
  type BreakerEvent,
  nextBreaker,
  nextForbidden,
} from '../../../lib/keypool/breaker.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';

const NOW = 1_000_000;
const event = (cls: CallClass, more: Partial<BreakerEvent> = {}): BreakerEvent => ({
  class: cls,
  startedAt: NOW,
  retryAfterMs: null,
  probe: false,
  ...more,
});
const open = (more: Partial<Breaker> = {}): Breaker => ({ reason: 'server_error', step: 2, openUntil: NOW, ...more });

describe('outcomes of a closed breaker', () => {
  test.each<[string, BreakerEvent, Breaker | null]>([
    ['401 opens it without end', event('auth'), { reason: 'auth', step: 0, openUntil: Number.POSITIVE_INFINITY }],
    ['403 leaves it alone', event('forbidden'), null],
    ['429 with a short Retry-After or none leaves it alone', event('rate_limit_short', { retryAfterMs: 5000 }), null],
    [
      '429 with a long Retry-After opens it for that time',
      event('rate_limit_long', { retryAfterMs: 42_000 }),
      { reason: 'rate_limit', step: 0, openUntil: NOW + 42_000 },
    ],
    ['500-599 opens it for 1 s', event('server_error'), { reason: 'server_error', step: 1, openUntil: NOW + 1000 }],
    ['a broken connection opens it for 1 s', event('network'), { reason: 'network', step: 1, openUntil: NOW + 1000 }],
    ['an unreachable host leaves it alone', event('unreachable'), null],
    ['item timeout leaves it alone', event('timeout'), null],
    ['cancel and shutdown leave it alone', event('aborted'), null],
    ['any other status leaves it closed', event('client_error'), null],
    ['a success leaves it closed', event('success'), null],
  ])('%s', (_row, given, expected) => {
    expect(nextBreaker(null, given, NOW)).toEqual(expected);
  });
});

describe('outcomes of an open breaker', () => {
  test.each(['success', 'client_error', 'bad_response', 'too_large'] as const)(
    'a call in flight that ends in %s closes it',
    (cls) => {
      expect(nextBreaker(open({ openUntil: NOW + 5000 }), event(cls, { startedAt: NOW - 60_000 }), NOW)).toBeNull();
    },
  );

  test('after a 401 nothing closes it, a success in flight neither', () => {
    const auth = open({ reason: 'auth', openUntil: Number.POSITIVE_INFINITY });
    for (const cls of Object.keys(BREAKER_EFFECTS) as CallClass[]) {
      expect(nextBreaker(auth, event(cls, { probe: true }), NOW)).toBe(auth);
    }
  });

  test('a 401 in flight takes over', () => {
    const next = nextBreaker(open({ openUntil: NOW + 5000 }), event('auth', { startedAt: NOW - 1 }), NOW);
    expect(next).toMatchObject({ reason: 'auth', openUntil: Number.POSITIVE_INFINITY });
  });

  test('64 calls that fail together are one failure', () => {
    let breaker: Breaker | null = null;
    for (let i = 0; i < 64; i++)
      breaker = nextBreaker(breaker, event('server_error', { startedAt: NOW - 100 }), NOW + i);
    expect(breaker).toEqual({ reason: 'server_error', step: 1, openUntil: NOW + 1000 });
  });

  test('the back-off is 1, 2, 4, 8, 16, 32, 60 s, then 60', () => {
    let breaker: Breaker | null = null;
    let now = NOW;
    const delays = Array.from({ length: 9 }, () => {
      breaker = nextBreaker(breaker, event('server_error', { startedAt: now }), now);
      const delay = breaker!.openUntil - now;
      now = breaker!.openUntil;
      return delay / 1000;
    });
    expect(delays).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
  });

  test('the failed probe counts although its own clock says it was sent too early', () => {
    const late = open({ openUntil: NOW + 3 });
    const next = nextBreaker(late, event('server_error', { startedAt: NOW, probe: true }), NOW + 10);
    expect(next).toMatchObject({ step: 3, openUntil: NOW + 10 + 4000 });
  });

  test('a longer Retry-After in flight extends it, the rest of the storm does not', () => {
    const breaker = open({ openUntil: NOW + 30_000 });
    const late = { startedAt: NOW - 1, retryAfterMs: 30_900 };
    expect(nextBreaker(breaker, event('rate_limit_long', late), NOW)).toBe(breaker);
    const longer = event('rate_limit_long', { ...late, retryAfterMs: 60_000 });
    expect(nextBreaker(breaker, longer, NOW)).toEqual({ reason: 'rate_limit', step: 2, openUntil: NOW + 60_000 });
  });

  test('a Retry-After of centuries becomes a month', () => {
    const next = nextBreaker(null, event('rate_limit_long', { retryAfterMs: 1e18 }), NOW);
    expect(next?.openUntil).toBe(NOW + 30 * 86_400_000);
  });
});

describe('properties', () => {
  const events = fc.array(
    fc.record({
      class: fc.constantFrom(...(Object.keys(BREAKER_EFFECTS) as CallClass[])),
      ageMs: fc.integer({ min: 0, max: 5000 }),
      waitMs: fc.integer({ min: 0, max: 70_000 }),
      retryAfterMs: fc.option(fc.integer({ min: 0, max: 1e12 })),
      probe: fc.boolean(),
    }),
    { maxLength: 40 },
  );

  test('steps stay in 0..7 and go up by one at most; only success closes; no failure shortens; 401 holds', () => {
    fc.assert(
      fc.property(events, (list) => {
        let now = NOW;
        let breaker: Breaker | null = null;
        for (const one of list) {
          now += one.waitMs;
          const next = nextBreaker(breaker, { ...one, startedAt: now - one.ageMs }, now);
          expect(next?.step ?? 0).toBeLessThanOrEqual(Math.min(7, (breaker?.step ?? 0) + 1));
          if (breaker !== null && next === null) expect(BREAKER_EFFECTS[one.class]).toBe('close');
          if (breaker !== null && next !== null) expect(next.openUntil).toBeGreaterThanOrEqual(breaker.openUntil);
          if (breaker?.reason === 'auth') expect(next).toBe(breaker);
          breaker = next;
        }
      }),
    );
  });

  test('any number of failures sent before the breaker half-opened advance it once', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: 999 }), { minLength: 1, maxLength: 64 }), (offsets) => {
        let breaker: Breaker | null = null;
        for (const offset of offsets.sort((a, b) => a - b)) {
          breaker = nextBreaker(breaker, event('network', { startedAt: NOW }), NOW + offset);
        }
        expect(breaker).toMatchObject({ step: 1, openUntil: NOW + offsets[0]! + 1000 });
      }),
    );
  });
});

test('a 403 rests the model for 60 s; 403s in flight do not make it longer', () => {
  expect(nextForbidden(undefined, NOW, NOW)).toBe(NOW + 60_000);
  expect(nextForbidden(NOW + 60_000, NOW - 5, NOW + 50)).toBe(NOW + 60_000);
  expect(nextForbidden(NOW, NOW, NOW + 50)).toBe(NOW + 60_050);
});
