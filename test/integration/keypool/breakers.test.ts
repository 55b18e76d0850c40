import pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keyHealth, resetKey } from '../../../lib/keypool/health.ts';
import type { Probe } from '../../../lib/keypool/pool.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';
import { age, caller, keysOf, orderOf, outcome, planOver, type Replica, replicaOn } from '../../support/keypool.ts';
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
  await database.db.query({ name: 'empty_failures', text: 'delete from breaker_failures', values: [] });
  here = replicaOn(database.db);
  there = replicaOn(database.db);
});

const MODEL = 'gpt-4o';

/** Reports on key `a` here and waits until Postgres knows. Every call is another item's. */
async function report(
  cls: CallClass,
  more: { ageMs?: number; retryAfterMs?: number } = {},
  probe: Probe | null = null,
  by = caller(items++),
) {
  here.pool.report(a, MODEL, by, outcome(cls, more), probe);
  await here.pool.flush();
}
let items = 0;

/** Three items fail: enough to open the breaker. */
async function fail(cls: CallClass = 'server_error', replica = here) {
  for (let i = 0; i < 3; i++) replica.pool.report(a, MODEL, caller(items++), outcome(cls), null);
  await replica.pool.flush();
}

/** Opens `a` for the model, lets its time pass, and tells both replicas. */
async function halfOpen() {
  await fail();
  await age(database.db, 1000);
  await refresh();
}
const refresh = () => Promise.all([here.pool.refresh(), there.pool.refresh()]);
/** As seen by an owner that did not open it. */
const healthOf = (replica: Replica, key = a, model = MODEL) => replica.pool.health(key, model, 'bob');
const tryProbe = (replica: Replica, owner = 'bob') => replica.pool.tryProbe(a, MODEL, owner);

describe('outcomes, as this replica and the others see them', () => {
  test.each<[string, CallClass, object, string, string, string | null]>([
    ['401', 'auth', {}, 'auth', 'auth', 'auth'],
    ['402, no credit', 'account', {}, 'open', 'open', 'account'],
    ['403', 'forbidden', {}, 'open', 'closed', null],
    ['429 with Retry-After <= 5 s or none', 'rate_limit_short', { retryAfterMs: 5000 }, 'closed', 'closed', null],
    ['429 with Retry-After > 5 s', 'rate_limit_long', { retryAfterMs: 30_000 }, 'open', 'open', 'rate_limit'],
    ['500-599', 'server_error', {}, 'open', 'closed', null],
    ['connection broke after connect', 'network', {}, 'open', 'closed', null],
    ['refused, no route, DNS, TLS at dial', 'unreachable', {}, 'closed', 'closed', null],
    ['item timeout', 'timeout', {}, 'closed', 'closed', null],
    ['cancel, shutdown', 'aborted', {}, 'closed', 'closed', null],
    ['any other status', 'client_error', {}, 'closed', 'closed', null],
    ['success', 'success', {}, 'closed', 'closed', null],
  ])('%s of three items', async (_row, cls, more, health, otherModel, reason) => {
    for (let i = 0; i < 3; i++) await report(cls, more);
    await there.pool.refresh();
    for (const replica of [here, there]) {
      // `half_open` is `open` on a machine that took more than the second of the first back-off.
      expect(healthOf(replica).replace('half_open', 'open')).toBe(health);
      expect(healthOf(replica, a, 'other-model')).toBe(otherModel);
      expect(healthOf(replica, b)).toBe('closed');
    }
    const view = await keyHealth(database.db, a);
    expect(view).toMatchObject({ name: 'a', reason });
    const { models } = view;
    expect(models.map(({ model }) => model)).toEqual(health !== otherModel ? [MODEL] : []);
  });

  test('the tries of one item, or of two, open nothing', async () => {
    for (let i = 0; i < 20; i++) await report('server_error', {}, null, caller(i % 2));
    await there.pool.refresh();
    expect([healthOf(here), healthOf(there)]).toEqual(['closed', 'closed']);
  });

  test('a suspect item opens nothing, and rests no model', async () => {
    for (let i = 0; i < 5; i++) await report('server_error', {}, null, caller(i, { suspect: true }));
    await report('forbidden', {}, null, caller(9, { suspect: true }));
    expect(healthOf(here)).toBe('closed');
    await report('auth', {}, null, caller(9, { suspect: true }));
    expect(healthOf(here)).toBe('auth');
  });

  test('one batch opens nothing beside another that calls, on this replica or on the other', async () => {
    const flood = async () => {
      for (let i = 0; i < 30; i++) await report('server_error');
      await there.pool.refresh();
      return [healthOf(here), healthOf(there)];
    };
    here.pool.calling(a, MODEL, caller(0, { batch: 2 }).batchId);
    expect(await flood()).toEqual(['closed', 'closed']);
    here = replicaOn(database.db);
    await here.pool.refresh();
    expect(await flood()).toEqual(['closed', 'closed']); // Postgres knows of the call
    there.pool.report(a, MODEL, caller(0, { batch: 2 }), outcome('server_error'), null);
    await there.pool.flush();
    expect(await rows()).toMatchObject([{ step: 1, reason: 'server_error' }]);
  });

  test('failures on two replicas count together, and a success on either comes between', async () => {
    await report('server_error');
    await report('server_error');
    there.pool.calling(a, MODEL, caller().batchId);
    there.pool.report(a, MODEL, caller(items++), outcome('success'), null);
    expect(there.statements).toEqual([]); // it knows of no failure yet
    await there.pool.refresh();
    await there.pool.flush();
    expect(there.statements).toEqual(['read_breakers', 'close_breaker']);
    await here.pool.refresh();
    await report('server_error');
    expect(await rows()).toEqual([]);
    there.pool.report(a, MODEL, caller(items++), outcome('network'), null);
    there.pool.report(a, MODEL, caller(items++), outcome('network'), null);
    await there.pool.flush();
    expect(await rows()).toMatchObject([{ step: 1, reason: 'network' }]);
    await here.pool.refresh();
    expect(healthOf(here)).toBe('open');
  });

  test('429 with Retry-After > 5 s opens for just that time', async () => {
    await report('rate_limit_long', { retryAfterMs: 30_000 });
    const [row] = await rows('');
    expect(row).toMatchObject({ step: 0, seconds: expect.closeTo(30, 0) });
  });

  test('probes that fail in a row back off 1, 2, 4, 8, 16, 32, 60 s, then 60', async () => {
    await fail();
    const delays: number[] = [];
    for (let i = 0; i < 9; i++) {
      delays.push((await rows())[0]!.seconds!);
      await age(database.db, 61_000);
      await here.pool.refresh();
      if (i < 8) await report('server_error', {}, (await tryProbe(here, 'ann'))!);
    }
    expect(delays).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
    expect((await keyHealth(database.db, a)).models).toMatchObject([{ model: MODEL, state: 'half_open', step: 7 }]);
  });

  test('64 calls that fail together on each of two replicas are one step, and a few statements', async () => {
    for (const { pool } of [here, there]) {
      for (let i = 0; i < 64; i++)
        pool.report(a, MODEL, caller(items++), outcome('server_error', { ageMs: 200 }), null);
    }
    await Promise.all([here.pool.flush(), there.pool.flush()]);
    expect(await rows()).toMatchObject([{ step: 1, seconds: 1 }]);
    expect(new Set(here.statements)).toEqual(new Set(['record_failures']));
    expect(here.statements.length).toBeLessThanOrEqual(2);
  });

  test('a success in flight closes the breaker for all, but for a 401', async () => {
    await fail();
    await there.pool.refresh();
    there.pool.report(a, MODEL, caller(), outcome('success', { ageMs: 60_000 }), null);
    await there.pool.flush();
    expect(await rows()).toEqual([]);
    await report('auth');
    await report('success', { ageMs: 60_000 });
    expect(await keyHealth(database.db, a)).toMatchObject({ state: 'open', open_until: null, reason: 'auth' });
  });

  test('no credit lasts 10 min, whatever is still in flight, and ends with the success of its probe', async () => {
    await report('account');
    await report('success', { ageMs: 60_000 });
    await report('account', { ageMs: 60_000 });
    expect(await rows('')).toMatchObject([{ reason: 'account', seconds: 600 }]);
    await age(database.db, 600_000);
    await refresh();
    const probe = (await here.pool.tryProbe(a, 'other-model', 'bob'))!;
    expect(probe).toMatchObject({ key: true, model: false });
    here.pool.report(a, 'other-model', caller(), outcome('account'), probe);
    await here.pool.flush();
    expect(await rows('')).toMatchObject([{ reason: 'account', seconds: 600 }]);
    await age(database.db, 601_000);
    await refresh();
    there.pool.report(a, MODEL, caller(), outcome('success'), (await tryProbe(there))!);
    await there.pool.flush();
    expect(await rows('')).toEqual([]);
  });

  test('breakers of the previous release, of keys, hold for all models and end with a success', async () => {
    const text = `insert into breakers (breaker_key, reason, step, open_until)
      values ($1::text, 'server_error', 3, clock_timestamp() + interval '1 minute')`;
    await database.db.query({ name: 'previous', text, values: [a.breakerKey] });
    await refresh();
    expect([healthOf(here), healthOf(here, a, 'other-model')]).toEqual(['open', 'open']);
    await age(database.db, 60_000);
    await refresh();
    await report('server_error', {}, (await tryProbe(here))!);
    expect(await keyHealth(database.db, a)).toMatchObject({ state: 'half_open', step: 3, models: [] });
    await report('success', {}, (await tryProbe(here, 'carl'))!);
    await there.pool.refresh();
    expect(healthOf(there)).toBe('closed');
  });

  test('outcomes of a healthy key cost no statement', async () => {
    for (const cls of ['success', 'client_error', 'rate_limit_short', 'timeout'] as const) await report(cls);
    expect(here.statements).toEqual([]);
  });

  test('an anonymous key has no breaker', async () => {
    const anonymous = { ...a, name: '', value: null, breakerKey: '' };
    for (let i = 0; i < 5; i++) here.pool.report(anonymous, MODEL, caller(i), outcome('server_error'), null);
    await here.pool.flush();
    expect(healthOf(here, anonymous)).toBe('closed');
    expect(await rows()).toEqual([]);
  });

  test('a rotated value starts closed', async () => {
    await report('auth');
    expect(healthOf(here, { ...a, value: 'new', breakerKey: 'other' })).toBe('closed');
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
    expect([healthOf(here), healthOf(there)]).toEqual(['half_open', 'half_open']);
    const asked = Array.from({ length: 40 }, (_, i) => tryProbe(i % 2 ? here : there));
    expect((await Promise.all(asked)).filter((probe) => probe !== null)).toHaveLength(1);
    await refresh();
    expect([healthOf(here), healthOf(there)]).toEqual(['probing', 'probing']);
    expect(orderOf(there, plan, 'bob')).toEqual(['b']);
  });

  test('alternates owners: who opened it, or had the last probe, comes a second after the others', async () => {
    await halfOpen();
    expect(here.pool.health(a, MODEL, 'ann')).toBe('open');
    expect(await there.pool.tryProbe(a, MODEL, 'ann')).toBeNull();
    await report('timeout', {}, (await tryProbe(here, 'bob'))!);
    await refresh();
    expect(await tryProbe(there, 'bob')).toBeNull();
    here.pool.report(a, MODEL, caller(), outcome('server_error'), (await tryProbe(here, 'ann'))!);
    await here.pool.flush();
    await age(database.db, 2000);
    await refresh();
    expect(await tryProbe(there, 'ann')).toBeNull();
    await age(database.db, 1000);
    await refresh();
    expect(await tryProbe(there, 'ann')).not.toBeNull();
  });

  test('its success closes the breaker, and the back-off starts anew', async () => {
    await halfOpen();
    await report('success', {}, await tryProbe(here));
    await there.pool.refresh();
    expect([healthOf(here), healthOf(there)]).toEqual(['closed', 'closed']);
    await fail();
    expect(await rows()).toMatchObject([{ step: 1 }]);
  });

  test('its failure opens the breaker for longer; that of a suspect item does not', async () => {
    await halfOpen();
    await report('server_error', {}, await tryProbe(here, 'bob'), caller(items++, { suspect: true, owner: 'bob' }));
    expect(await rows()).toMatchObject([{ step: 1, probe: false }]);
    await report('server_error', {}, await tryProbe(here, 'carl'));
    expect(await rows()).toMatchObject([{ step: 2, seconds: 2, probe: false }]);
  });

  test.each(['timeout', 'rate_limit_short', 'unreachable', 'auth', 'account'] as const)(
    'after a probe that ends in %s another one may go',
    async (cls) => {
      await halfOpen();
      await report(cls, {}, await tryProbe(here));
      await database.db.query({ name: 'heal', text: `delete from breakers where model = ''`, values: [] });
      await there.pool.refresh();
      expect(there.pool.health(a, MODEL, 'carl')).toBe('half_open');
      expect(await tryProbe(there, 'carl')).not.toBeNull();
    },
  );

  test('a probe whose replica died is replaced when its lease is over', async () => {
    await halfOpen();
    expect(await tryProbe(here)).not.toBeNull();
    expect(await tryProbe(there)).toBeNull();
    await age(database.db, 300_000);
    await there.pool.refresh();
    expect(await tryProbe(there)).not.toBeNull();
  });

  test('a breaker that is still open, or open without end, lets no probe through', async () => {
    await report('rate_limit_long', { retryAfterMs: 600_000 });
    expect(await tryProbe(here)).toBeNull();
    await report('auth');
    await age(database.db, 3_600_000);
    await there.pool.refresh();
    expect(await tryProbe(there)).toBeNull();
  });

  test('the probe of the key without that of the model is given back', async () => {
    await halfOpen();
    await report('rate_limit_long', { retryAfterMs: 6000 });
    await age(database.db, 7000);
    await refresh();
    expect(await tryProbe(here, 'bob')).toMatchObject({ key: true, model: true });
    await database.db.query({
      name: 'free_key',
      text: `update breakers set probe_id = null, probe_until = null where model = ''`,
      values: [],
    });
    expect(await tryProbe(there, 'carl')).toBeNull();
    const probes = await Promise.all([rows(''), rows()]);
    expect(probes.flat().map(({ probe }) => probe)).toEqual([false, true]);
  });
});

describe('pausing', () => {
  test('tells when the first key reopens and why; 0 while one is healthy; null when only 401s are left', async () => {
    const reopening = () => here.pool.reopening(plan, 'bob');
    const healthy = { inMs: 0, reason: null, hostKey: null };
    expect(reopening()).toEqual(healthy);
    await report('auth');
    expect(reopening()).toEqual(healthy);
    expect(orderOf(here, plan)).toEqual(['b']);
    here.pool.report(b, MODEL, caller(), outcome('rate_limit_long', { retryAfterMs: 120_000 }), null);
    expect(orderOf(here, plan)).toEqual([]);
    expect(reopening().reason).toBe('rate_limit');
    expect(reopening().inMs).toBeGreaterThan(60_000);
    expect(reopening().inMs).toBeLessThanOrEqual(120_000);
    here.pool.report(b, MODEL, caller(), outcome('account'), null);
    expect(reopening().reason).toBe('account');
    here.pool.report(b, MODEL, caller(), outcome('auth'), null);
    expect(reopening()).toEqual({ inMs: null, reason: 'auth', hostKey: 'a' });
    await here.pool.flush();
  });
});

describe('reset', () => {
  test('closes the breaker and its models, at once here and with the next look elsewhere', async () => {
    await fail();
    here.pool.report(a, 'other-model', caller(items++), outcome('server_error'), null);
    here.pool.report(a, 'third-model', caller(items++), outcome('forbidden'), null);
    await report('auth');
    await there.pool.refresh();
    expect(healthOf(there)).toBe('auth');
    await here.pool.reset(a);
    const all = [MODEL, 'third-model'];
    expect(all.map((model) => healthOf(here, a, model))).toEqual(['closed', 'closed']);
    await there.pool.ensureFresh(0);
    expect(all.map((model) => healthOf(there, a, model))).toEqual(['closed', 'closed']);
    const left = await database.db.query({ name: 'left', text: 'select from breaker_failures', values: [] });
    expect(left.rows).toHaveLength(0);
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

test('key health shows the key, and a row for each model whose breaker is not closed', async () => {
  await halfOpen();
  here.pool.report(a, 'resting', caller(), outcome('forbidden'), null);
  here.pool.report(a, 'watched', caller(), outcome('server_error'), null);
  await report('account');
  const open_until = expect.stringMatching(/^\d{4}-\d\d-\d\dT[\d:]+\.\d{3}Z$/);
  expect(await keyHealth(database.db, a)).toEqual({
    name: 'a',
    state: 'open',
    step: 0,
    open_until,
    reason: 'account',
    models: [
      { model: MODEL, state: 'half_open', step: 1, open_until, reason: 'server_error' },
      { model: 'resting', state: 'open', step: 0, open_until, reason: 'forbidden' },
    ],
  });
});

describe('Postgres away', () => {
  test('this replica acts on its own failures, and writes them when Postgres is back', async () => {
    here.link.cut = true;
    await fail();
    await here.pool.refresh();
    expect(healthOf(here)).not.toBe('closed');
    expect(await rows()).toEqual([]);
    here.link.cut = false;
    await here.pool.refresh();
    expect(await rows()).toMatchObject([{ step: 1 }]);
    expect(healthOf(here)).not.toBe('closed');
  });

  test('what fails meanwhile is one write for each model, however many items fail', async () => {
    here.link.cut = true;
    here.pool.calling(a, MODEL, caller(0, { batch: 2 }).batchId);
    here.pool.calling(a, 'other-model', caller(0, { batch: 2 }).batchId);
    for (let i = 0; i < 500; i++) {
      here.pool.report(a, i % 2 ? MODEL : 'other-model', caller(i), outcome('server_error'), null);
    }
    await here.pool.flush();
    here.link.cut = false;
    here.statements.length = 0;
    await here.pool.flush();
    expect(here.statements.length).toBeLessThanOrEqual(3);
    expect(new Set(here.statements)).toEqual(new Set(['record_failures']));
  });

  test('a success that could not be written does not close what opened since', async () => {
    await fail();
    here.link.cut = true;
    await report('success');
    // When the success was seen is known to within the round trip of its write: the opening must be later than that.
    await new Promise((resolve) => setTimeout(resolve, 2000));
    there.pool.report(a, MODEL, caller(), outcome('rate_limit_long', { retryAfterMs: 600_000 }), null);
    await there.pool.flush();
    here.link.cut = false;
    await here.pool.refresh();
    expect(here.statements).toContain('close_breaker');
    expect(healthOf(here)).toBe('open');
  });

  test('no probe is let through', async () => {
    await halfOpen();
    here.link.cut = true;
    expect(await tryProbe(here)).toBeNull();
  });
});

test('concurrent looks read once, and a fresh one not at all', async () => {
  await Promise.all([here.pool.refresh(), here.pool.refresh(), here.pool.ensureFresh()]);
  await here.pool.ensureFresh(60_000);
  expect(here.statements).toEqual(['read_breakers']);
});

/** Breakers of a model, or of keys, with how long they were opened for. */
async function rows(model = MODEL) {
  const result = await database.db.query<{ step: number; reason: string; seconds: number | null; probe: boolean }>({
    name: 'breaker_rows',
    text: `select step, reason, extract(epoch from open_until - opened_at)::float8 as seconds, probe_id is not null as probe
      from breakers where model = $1::text`,
    values: [model],
  });
  return result.rows;
}
