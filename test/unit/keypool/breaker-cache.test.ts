import { describe, expect, test } from 'vitest';
import { createBreakerCache } from '../../../lib/keypool/breaker-cache.ts';
import type { BreakerRow } from '../../../lib/keypool/keypool.sql.ts';
import { hostKeyOf } from '../../support/routing-catalog.ts';

const key = hostKeyOf({ name: 'k', host: 'local' });
const anonymous = hostKeyOf({ name: '', host: 'local', value: null, breakerKey: '' });
const failure = { class: 'server_error' as const, startedAt: 0, retryAfterMs: null, probe: false };
const row = (more: Partial<BreakerRow>): BreakerRow => ({
  breaker_key: key.breakerKey,
  model: '',
  reason: 'network',
  step: 1,
  open_for_ms: 1000,
  probe_for_ms: null,
  ...more,
});
const written = () => false;

describe('snapshot of breakers', () => {
  test('goes from closed to open, half-open, probing and back to closed', () => {
    const snapshot = createBreakerCache();
    expect(snapshot.health(key, 'm', 0)).toBe('closed');
    expect(snapshot.apply(key.breakerKey, failure, 0)).toBe(true);
    expect(snapshot.health(key, 'm', 999)).toBe('open');
    expect(snapshot.reopensIn(key, 'm', 400)).toBe(600);
    expect(snapshot.health(key, 'm', 1000)).toBe('half_open');
    snapshot.setProbe(key.breakerKey, 5000);
    expect(snapshot.health(key, 'm', 1000)).toBe('probing');
    expect(snapshot.reopensIn(key, 'm', 1000)).toBe(1000);
    expect(snapshot.health(key, 'm', 5000)).toBe('half_open');
    snapshot.apply(key.breakerKey, { ...failure, class: 'success' }, 5000);
    expect(snapshot.health(key, 'm', 5000)).toBe('closed');
  });

  test('a 403 rests its model only', () => {
    const snapshot = createBreakerCache();
    snapshot.forbid(key.breakerKey, 'm', 0, 0);
    expect(snapshot.health(key, 'm', 59_999)).toBe('open');
    expect(snapshot.reopensIn(key, 'm', 0)).toBe(60_000);
    expect(snapshot.health(key, 'other', 0)).toBe('closed');
    expect(snapshot.health(key, 'm', 60_000)).toBe('closed');
  });

  test('a key without a breaker is always closed', () => {
    const snapshot = createBreakerCache();
    snapshot.replace([row({ breaker_key: '' })], 0, snapshot.mark(), written);
    expect(snapshot.health(anonymous, 'm', 0)).toBe('closed');
  });

  test('takes over what other replicas saw, and forgets what they closed', () => {
    const snapshot = createBreakerCache();
    snapshot.replace(
      [row({}), row({ model: 'x', reason: 'forbidden', open_for_ms: 9000 })],
      100,
      snapshot.mark(),
      written,
    );
    expect(snapshot.reopensIn(key, 'm', 100)).toBe(1000);
    expect(snapshot.reopensIn(key, 'x', 100)).toBe(9000);
    snapshot.replace([row({ reason: 'auth', open_for_ms: null })], 200, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 1e12)).toBe('auth');
    expect(snapshot.reopensIn(key, 'm', 0)).toBe(Number.POSITIVE_INFINITY);
    snapshot.replace([row({ open_for_ms: -5, probe_for_ms: 300 })], 300, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 300)).toBe('probing');
    snapshot.replace([], 400, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 400)).toBe('closed');
    expect(snapshot.knows(key.breakerKey)).toBe(false);
  });

  test('keeps what happened here after the read began, and what is not written yet', () => {
    const snapshot = createBreakerCache();
    const mark = snapshot.mark();
    snapshot.apply(key.breakerKey, failure, 0);
    snapshot.replace([], 10, mark, written);
    expect(snapshot.health(key, 'm', 10)).toBe('open');
    snapshot.replace(
      [row({ step: 5, open_for_ms: 16_000 })],
      10,
      snapshot.mark(),
      (breakerKey) => breakerKey === key.breakerKey,
    );
    expect(snapshot.reopensIn(key, 'm', 10)).toBe(990);
    snapshot.replace([], 10, snapshot.mark(), written);
    expect(snapshot.health(key, 'm', 10)).toBe('closed');
  });
});
