import fc from 'fast-check';
import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type Breaker, nextBreaker } from '../../../lib/keypool/breaker.ts';
import { keyHealth, resetKey } from '../../../lib/keypool/health.ts';
import { closeBreaker, recordAuthFailure, recordBackoff, recordRetryAfter } from '../../../lib/keypool/keypool.sql.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';
import { age, keysOf, orderOf, outcome, planOver, type Replica, replicaOn } from '../../support/keypool.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
let here: Replica;
let there: Replica;
const plan = planOver(['a', 'b']);
const [a, b] = [keysOf(plan)[0]!, keysOf(plan)[1]!];

beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(async () => {
  await database.db.query({ name: 'empty', text: 'delete from breakers', values: [] });
  here = replicaOn(database.db);
  there = replicaOn(database.db);
});

/** Reports on key `a` here and waits until Postgres knows. */
async function report(
  cls: CallClass,
  more: { ageMs?: number; retryAfterMs?: number } = {},
  probeId: string | null = null,
) {
  here.pool.report(a, 'gpt-4o', outcome(cls, more), probeId);
  await here.pool.flush();
}

/** Opens `a` by a failure, lets its time pass, and tells both replicas. */
async function halfOpen() {
  await report('server_error');
  await age(database.db, 1000);
  await Promise.all([here.pool.refresh(), there.pool.refresh()]);
}

describe('outcomes, as this replica and the others see them', () => {
  test.each<[string, CallClass, object, string, string | null]>([
    ['401', 'auth', {}, 'auth', 'auth'],
    ['403', 'forbidden', {}, 'open', null],
    ['429 with Retry-After <= 5 s or none', 'rate_limit_short', { retryAfterMs: 5000 }, 'closed', null],
    ['429 with Retry-After > 5 s', 'rate_limit_long', { retryAfterMs: 30_000 }, 'open', 'rate_limit'],
    ['500-599', 'server_error', {}, 'open', 'server_error'],
    ['connection broke after connect', 'network', {}, 'open', 'network'],
    ['refused, no route, DNS, TLS at dial', 'unreachable', {}, 'closed', null],
    ['item timeout', 'timeout', {}, 'closed', null],
    ['cancel, shutdown', 'aborted', {}, 'closed', null],
    ['any other status', 'client_error', {}, 'closed', null],
    ['success', 'success', {}, 'closed', null],
  ])('%s', async (_row, cls, more, health, reason) => {
    await report(cls, more);
    await there.pool.refresh();
    for (const { pool } of [here, there]) {
      // `half_open` is `open` on a machine that took more than the second of the first back-off.
      expect(pool.health(a, 'gpt-4o').replace('half_open', 'open')).toBe(health);
      expect(pool.health(a, 'other-model').replace('half_open', 'open')).toBe(cls === 'forbidden' ? 'closed' : health);
      expect(pool.health(b, 'gpt-4o')).toBe('closed');
    }
    expect(await keyHealth(database.db, a)).toMatchObject({ name: 'a', reason });
  });

  test('429 with Retry-After > 5 s opens for just that time', async () => {
    await report('rate_limit_long', { retryAfterMs: 30_000 });
    const [row] = await rows();
    expect(row).toMatchObject({ step: 0, seconds: expect.closeTo(30, 0) });
  });

  test('500s in a row back off 1, 2, 4, 8, 16, 32, 60 s, then 60', async () => {
    const delays: number[] = [];
    for (let i = 0; i < 9; i++) {
      await report('server_error');
      delays.push((await rows())[0]!.seconds!);
      await age(database.db, 60_000);
      await here.pool.refresh();
    }
    expect(delays).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
    await report('server_error');
    expect(await keyHealth(database.db, a)).toMatchObject({ state: 'open', step: 7 });
  });

  test('64 calls that fail together on each of two replicas are one step', async () => {
    for (const { pool } of [here, there]) {
      for (let i = 0; i < 64; i++) pool.report(a, 'gpt-4o', outcome('server_error', { ageMs: 200 }), null);
    }
    await Promise.all([here.pool.flush(), there.pool.flush()]);
    expect(await rows()).toMatchObject([{ step: 1, seconds: 1 }]);
    expect(here.statements).toEqual(['record_backoff']);
  });

  test('a success in flight closes the breaker for all, but for a 401', async () => {
    await report('server_error');
    await there.pool.refresh();
    there.pool.report(a, 'gpt-4o', outcome('success', { ageMs: 60_000 }), null);
    await there.pool.flush();
    expect(await rows()).toEqual([]);
    await report('auth');
    await report('success', { ageMs: 60_000 });
    expect(await keyHealth(database.db, a)).toMatchObject({ state: 'open', open_until: null, reason: 'auth' });
  });

  test('outcomes of a healthy key cost no statement', async () => {
    for (const cls of ['success', 'client_error', 'rate_limit_short', 'timeout'] as const) await report(cls);
    expect(here.statements).toEqual([]);
  });

  test('an anonymous key has no breaker', async () => {
    const anonymous = { ...a, name: '', value: null, breakerKey: '' };
    here.pool.report(anonymous, 'gpt-4o', outcome('server_error'), null);
    await here.pool.flush();
    expect(here.pool.health(anonymous, 'gpt-4o')).toBe('closed');
    expect(await rows()).toEqual([]);
  });

  test('a rotated value starts closed', async () => {
    await report('auth');
    expect(here.pool.health({ ...a, value: 'new', breakerKey: 'other' }, 'gpt-4o')).toBe('closed');
  });

  test('no value of a key reaches Postgres', async () => {
    await report('auth');
    await report('forbidden');
    const all = await database.db.query<{ line: string }>({
      name: 'dump',
      text: 'select b::text as line from breakers b',
      values: [],
    });
    expect(all.rows).toHaveLength(2);
    for (const { line } of all.rows) expect(line).not.toContain(a.value);
  });
});

describe('half-open', () => {
  test('lets one probe through, over all replicas and however many ask', async () => {
    await halfOpen();
    expect([here.pool.health(a, 'gpt-4o'), there.pool.health(a, 'gpt-4o')]).toEqual(['half_open', 'half_open']);
    const asked = Array.from({ length: 40 }, (_, i) => (i % 2 ? here : there).pool.tryProbe(a));
    expect((await Promise.all(asked)).filter((probe) => probe !== null)).toHaveLength(1);
    await Promise.all([here.pool.refresh(), there.pool.refresh()]);
    expect([here.pool.health(a, 'gpt-4o'), there.pool.health(a, 'gpt-4o')]).toEqual(['probing', 'probing']);
    expect(orderOf(there, plan)).toEqual(['b']);
  });

  test('its success closes the breaker, and the back-off starts anew', async () => {
    await halfOpen();
    await report('success', {}, await here.pool.tryProbe(a));
    await there.pool.refresh();
    expect([here.pool.health(a, 'gpt-4o'), there.pool.health(a, 'gpt-4o')]).toEqual(['closed', 'closed']);
    await report('server_error');
    expect(await rows()).toMatchObject([{ step: 1 }]);
  });

  test('its failure opens the breaker for longer', async () => {
    await halfOpen();
    await report('server_error', {}, await here.pool.tryProbe(a));
    expect(await rows()).toMatchObject([{ step: 2, seconds: 2, probe: false }]);
  });

  test.each(['timeout', 'rate_limit_short', 'forbidden', 'unreachable'] as const)(
    'after a probe that ends in %s another one may go',
    async (cls) => {
      await halfOpen();
      await report(cls, {}, await here.pool.tryProbe(a));
      await there.pool.refresh();
      expect(there.pool.health(a, 'other-model')).toBe('half_open');
      expect(await there.pool.tryProbe(a)).not.toBeNull();
    },
  );

  test('a probe whose replica died is replaced when its lease is over', async () => {
    await halfOpen();
    expect(await here.pool.tryProbe(a)).not.toBeNull();
    expect(await there.pool.tryProbe(a)).toBeNull();
    await age(database.db, 300_000);
    await there.pool.refresh();
    expect(await there.pool.tryProbe(a)).not.toBeNull();
  });

  test('a breaker that is still open, or open without end, lets no probe through', async () => {
    await report('rate_limit_long', { retryAfterMs: 600_000 });
    expect(await here.pool.tryProbe(a)).toBeNull();
    await report('auth');
    await age(database.db, 3_600_000);
    await there.pool.refresh();
    expect(await there.pool.tryProbe(a)).toBeNull();
  });
});

describe('pausing', () => {
  test('tells when the first key reopens; 0 while one is healthy; null when only 401s are left', async () => {
    expect(here.pool.reopensInMs(plan)).toBe(0);
    await report('auth');
    expect(here.pool.reopensInMs(plan)).toBe(0);
    expect(orderOf(here, plan)).toEqual(['b']);
    here.pool.report(b, 'gpt-4o', outcome('rate_limit_long', { retryAfterMs: 120_000 }), null);
    expect(orderOf(here, plan)).toEqual([]);
    expect(here.pool.reopensInMs(plan)).toBeGreaterThan(60_000);
    expect(here.pool.reopensInMs(plan)).toBeLessThanOrEqual(120_000);
    here.pool.report(b, 'gpt-4o', outcome('auth'), null);
    expect(here.pool.reopensInMs(plan)).toBeNull();
    await here.pool.flush();
  });
});

describe('reset', () => {
  test('closes the breaker and its models, at once here and with the next look elsewhere', async () => {
    await report('auth');
    await report('forbidden');
    await there.pool.refresh();
    expect(there.pool.health(a, 'gpt-4o')).toBe('auth');
    await here.pool.reset(a);
    expect(here.pool.health(a, 'gpt-4o')).toBe('closed');
    await there.pool.ensureFresh(0);
    expect(there.pool.health(a, 'gpt-4o')).toBe('closed');
    expect(await keyHealth(database.db, a)).toEqual({
      name: 'a',
      state: 'closed',
      step: 0,
      open_until: null,
      reason: null,
      models: [],
    });
  });

  test('tells the replicas that listen', async () => {
    const listener = new pg.Client({ connectionString: database.dsn });
    await listener.connect();
    try {
      await listener.query('listen relay_breakers');
      const told = new Promise((resolve) => listener.once('notification', resolve));
      await here.pool.reset(a);
      expect(await told).toMatchObject({ channel: 'relay_breakers' });
    } finally {
      await listener.end();
    }
  });

  test('leaves other keys alone', async () => {
    await report('auth');
    await resetKey(database.db, b);
    expect(await keyHealth(database.db, a)).toMatchObject({ reason: 'auth' });
  });
});

test('key health shows half-open breakers and resting models', async () => {
  await report('forbidden');
  await halfOpen();
  const view = await keyHealth(database.db, a);
  const time = expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:]+\.\d{3}Z$/);
  expect(view).toEqual({
    name: 'a',
    state: 'half_open',
    step: 1,
    open_until: time,
    reason: 'server_error',
    models: [{ model: 'gpt-4o', until: time }],
  });
});

describe('Postgres away', () => {
  test('this replica acts on its own failures, and writes them when Postgres is back', async () => {
    here.link.cut = true;
    await report('server_error');
    await here.pool.refresh();
    expect(here.pool.health(a, 'gpt-4o')).not.toBe('closed');
    expect(await rows()).toEqual([]);
    here.link.cut = false;
    await here.pool.refresh();
    expect(await rows()).toMatchObject([{ step: 1 }]);
    expect(here.pool.health(a, 'gpt-4o')).not.toBe('closed');
  });

  test('a success that could not be written does not close what opened since', async () => {
    await report('server_error');
    here.link.cut = true;
    await report('success');
    // When the success was seen is known to within the round trip of its write: the opening must be later than that.
    await new Promise((resolve) => setTimeout(resolve, 2000));
    there.pool.report(a, 'gpt-4o', outcome('rate_limit_long', { retryAfterMs: 600_000 }), null);
    await there.pool.flush();
    here.link.cut = false;
    await here.pool.refresh();
    expect(here.statements).toContain('close_breaker');
    expect(here.pool.health(a, 'gpt-4o')).toBe('open');
  });

  test('no probe is let through', async () => {
    await halfOpen();
    here.link.cut = true;
    expect(await here.pool.tryProbe(a)).toBeNull();
  });
});

test('concurrent looks read once, and a fresh one not at all', async () => {
  await Promise.all([here.pool.refresh(), here.pool.refresh(), here.pool.ensureFresh()]);
  await here.pool.ensureFresh(60_000);
  expect(here.statements).toEqual(['read_breakers']);
});

test('Postgres comes to the same step and reason as the pure rules, for any outcomes', async () => {
  const classes = ['success', 'auth', 'rate_limit_long', 'server_error', 'network', 'timeout'] as const;
  const weights = [4, 1, 5, 20, 10, 2];
  // No sum of these comes within 300 ms of a back-off: the two clocks are read some milliseconds apart.
  const events = fc.array(
    fc.record({
      class: fc.oneof(...classes.map((cls, i) => ({ arbitrary: fc.constant(cls), weight: weights[i]! }))),
      waitMs: fc.constantFrom(0, 5700, 70_500),
      ageMs: fc.constantFrom(0, 3000, 51_000),
      retryAfterMs: fc.constantFrom(10_000, 45_000),
    }),
    { minLength: 1, maxLength: 12 },
  );
  await fc.assert(
    fc.asyncProperty(events, async (list) => {
      await database.db.query({ name: 'empty', text: 'delete from breakers', values: [] });
      let expected: Breaker | null = null;
      let shift = 0;
      for (const one of list) {
        await age(database.db, one.waitMs);
        shift += one.waitMs;
        const now = performance.now() + shift;
        expected = nextBreaker(expected, { ...one, startedAt: now - one.ageMs, probe: false }, now);
        await writeOutcome(one.class, one.ageMs, one.retryAfterMs);
      }
      const [row] = await rows();
      expect(row?.step).toBe(expected?.step);
      expect(row?.reason).toBe(expected?.reason);
    }),
    { numRuns: 150 },
  );
});

/** What a replica that knows nothing of the breaker would write. */
async function writeOutcome(cls: CallClass, ageMs: number, retryAfterMs: number): Promise<void> {
  const call = { breakerKey: a.breakerKey, ageMs, probeId: null };
  if (cls === 'success') await closeBreaker(database.db, a.breakerKey, 0);
  if (cls === 'auth') await recordAuthFailure(database.db, a.breakerKey);
  if (cls === 'rate_limit_long') await recordRetryAfter(database.db, call, retryAfterMs);
  if (cls === 'server_error' || cls === 'network') await recordBackoff(database.db, call, cls);
}

/** Breakers of keys, with how long they were opened for. */
async function rows() {
  const result = await database.db.query<{ step: number; reason: string; seconds: number | null; probe: boolean }>({
    name: 'breaker_rows',
    text: `select step, reason, extract(epoch from open_until - opened_at)::float8 as seconds, probe_id is not null as probe
      from breakers where model = ''`,
    values: [],
  });
  return result.rows;
}
