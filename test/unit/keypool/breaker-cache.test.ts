import { describe, expect, test } from 'vitest';
import { type CacheEvent, createBreakerCache, type ReadBreaker } from '../../../lib/keypool/breaker-cache.ts';
import { hostKeyOf } from '../../support/routing-catalog.ts';

const key = hostKeyOf({ name: 'k', host: 'local' });
const anonymous = hostKeyOf({ name: '', host: 'local', value: null, breakerKey: '' });
const { breakerKey } = key;
const NONE = { key: false, model: false };
const event = (more: Partial<CacheEvent>): CacheEvent => ({
  class: 'server_error',
  startedAt: 0,
  retryAfterMs: null,
  owner: 'ann',
  probe: NONE,
  failed: [],
  ...more,
});
/** Three items at once: enough to open the breaker of a model. */
const failure = (at = 0) => event({ failed: [0, 1, 2].map((idx) => ({ batchId: 'b', idx, at })) });
const row = (more: Partial<ReadBreaker>): ReadBreaker => ({
  breaker_key: breakerKey,
  model: 'm',
  reason: 'network',
  step: 1,
  open_for_ms: 1000,
  probe_for_ms: null,
  last_owner: null,
  failures: [],
  ...more,
});
const written = () => false;

describe('snapshot of breakers', () => {
  test('goes from closed to open, half-open, probing and back to closed, for one model', () => {
    const snapshot = createBreakerCache();
    const health = (now: number, owner = 'bob', model = 'm') => snapshot.health(key, model, owner, now);
    expect(health(0)).toBe('closed');
    expect(snapshot.apply(breakerKey, 'm', failure(), 0)).toEqual({ key: false, model: 'breaker' });
    expect(health(999)).toBe('open');
    expect(health(999, 'bob', 'other')).toBe('closed');
    expect(snapshot.reopensIn(key, 'm', 'bob', 400)).toBe(600);
    expect(health(1000)).toBe('half_open');
    expect(snapshot.halfOpen(key, 'm', 'bob', 1000)).toEqual({ key: false, model: true });
    snapshot.setProbe(breakerKey, 'm', 5000);
    expect(health(1000)).toBe('probing');
    expect(snapshot.reopensIn(key, 'm', 'bob', 1000)).toBe(1000);
    expect(health(5000)).toBe('half_open');
    snapshot.apply(breakerKey, 'm', event({ class: 'success' }), 5000);
    expect(health(5000)).toBe('closed');
    expect(snapshot.knows(breakerKey, 'm')).toBe(false);
  });

  test('the owner of the last failure, and of the last probe, comes a second after the others', () => {
    const snapshot = createBreakerCache();
    snapshot.apply(breakerKey, 'm', failure(), 0);
    expect(snapshot.health(key, 'm', 'ann', 1999)).toBe('open');
    expect(snapshot.reopensIn(key, 'm', 'ann', 1000)).toBe(1000);
    expect(snapshot.health(key, 'm', 'ann', 2000)).toBe('half_open');
    snapshot.setProbe(breakerKey, 'm', 9000);
    snapshot.endProbe(breakerKey, 'm', 'bob', 3000);
    expect(snapshot.health(key, 'm', 'ann', 3000)).toBe('half_open');
    expect(snapshot.health(key, 'm', 'bob', 3999)).toBe('open');
    expect(snapshot.health(key, 'm', 'bob', 4000)).toBe('half_open');
  });

  test('two breakers in the way are both probed, and the later one counts', () => {
    const snapshot = createBreakerCache();
    snapshot.apply(breakerKey, 'm', failure(), 0);
    snapshot.apply(breakerKey, 'm', event({ class: 'rate_limit_long', retryAfterMs: 8000 }), 0);
    expect(snapshot.reopensIn(key, 'm', 'bob', 0)).toBe(8000);
    expect(snapshot.reasonOf(key, 'm')).toBe('rate_limit');
    expect(snapshot.reopensIn(key, 'other', 'bob', 0)).toBe(8000);
    expect(snapshot.halfOpen(key, 'm', 'bob', 8000)).toEqual({ key: true, model: true });
    expect(snapshot.halfOpen(key, 'other', 'bob', 8000)).toEqual({ key: true, model: false });
    snapshot.setProbe(breakerKey, 'm', 9000);
    expect(snapshot.health(key, 'm', 'bob', 8000)).toBe('probing');
    expect(snapshot.health(key, 'other', 'bob', 8000)).toBe('half_open');
  });

  test('a 403 rests its model only, and needs no probe after it', () => {
    const snapshot = createBreakerCache();
    snapshot.apply(breakerKey, 'm', event({ class: 'forbidden' }), 0);
    expect(snapshot.health(key, 'm', 'ann', 59_999)).toBe('open');
    expect(snapshot.reopensIn(key, 'm', 'ann', 0)).toBe(60_000);
    expect(snapshot.health(key, 'other', 'ann', 0)).toBe('closed');
    expect(snapshot.health(key, 'm', 'ann', 60_000)).toBe('closed');
  });

  test('a key without a breaker is always closed', () => {
    const snapshot = createBreakerCache();
    snapshot.replace([row({ breaker_key: '' })], 0, snapshot.mark(), written);
    expect(snapshot.health(anonymous, 'm', 'ann', 0)).toBe('closed');
  });

  test('takes over what other replicas saw, and forgets what they closed', () => {
    const snapshot = createBreakerCache();
    const replace = (now: number, ...rows: ReadBreaker[]) => snapshot.replace(rows, now, snapshot.mark(), written);
    const health = (now: number) => snapshot.health(key, 'm', 'ann', now);
    replace(100, row({}), row({ model: 'x', reason: 'forbidden', open_for_ms: 9000 }));
    expect(snapshot.reopensIn(key, 'm', 'ann', 100)).toBe(1000);
    expect(snapshot.reopensIn(key, 'x', 'ann', 100)).toBe(9000);
    replace(200, row({ model: '', reason: 'auth', open_for_ms: null }));
    expect(health(1e12)).toBe('auth');
    expect(snapshot.reopensIn(key, 'm', 'ann', 0)).toBe(Number.POSITIVE_INFINITY);
    replace(300, row({ open_for_ms: -5, probe_for_ms: 300 }));
    expect(health(300)).toBe('probing');
    replace(350, row({ open_for_ms: -5, last_owner: 'ann' }));
    expect(health(350)).toBe('open');
    replace(400);
    expect(health(400)).toBe('closed');
    expect(snapshot.knows(breakerKey, 'm')).toBe(false);
  });

  test('adds its own failures to those of others', () => {
    const snapshot = createBreakerCache();
    const failed = [0, 1].map((idx) => ({ batchId: 'b', idx, at: 2000 }));
    const known = row({ reason: null, step: null, open_for_ms: null, failures: failed });
    snapshot.replace([known], 5000, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 'ann', 5000)).toBe('closed');
    expect(snapshot.knows(breakerKey, 'm')).toBe(true);
    snapshot.apply(breakerKey, 'm', event({ failed: [{ batchId: 'b', idx: 2, at: 5000 }] }), 5000);
    expect(snapshot.health(key, 'm', 'ann', 5000)).toBe('open');
  });

  test('keeps what happened here after the read began, and what is not written yet', () => {
    const snapshot = createBreakerCache();
    const mark = snapshot.mark();
    snapshot.apply(breakerKey, 'm', failure(), 0);
    snapshot.replace([], 10, mark, written);
    expect(snapshot.health(key, 'm', 'ann', 10)).toBe('open');
    snapshot.replace([row({ step: 5, open_for_ms: 16_000 })], 10, snapshot.mark(), (one) => one === breakerKey);
    expect(snapshot.reopensIn(key, 'm', 'bob', 10)).toBe(990);
    snapshot.replace([], 10, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 'ann', 10)).toBe('closed');
  });
});
