import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  BREAKER_EFFECTS,
  type Breaker,
  type ModelState,
  nextKeyBreaker,
  nextModelState,
} from '../../../lib/keypool/breaker.ts';
import { createBreakerCache } from '../../../lib/keypool/breaker-cache.ts';
import {
  closeBreaker,
  deleteBreakers,
  readBreakers,
  recordAccountFailure,
  recordAuthFailure,
  recordFailures,
  recordForbidden,
  recordProbeFailure,
  recordRetryAfter,
  releaseProbe,
  takeProbe,
} from '../../../lib/keypool/breakers.sql.ts';
import { CALLED, type Failure, parseFailures } from '../../../lib/keypool/failures.ts';
import type { HostKey } from '../../../lib/model/catalog.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';
import { batchNo } from '../../support/keypool.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

// The rules of breakers stand twice: in TypeScript, where a replica needs the answer at once, and in SQL, where replicas
// share it. Both are run through the same events here, on one clock: in this database `clock_timestamp()` is a function of
// the test, found before the real one.

const START = Date.UTC(2026, 0, 1);
const PROBE_LEASE_MS = 5_000;
const MODELS = ['a', 'b'] as const;

let database: TestDatabase;
let admin: pg.Client;

beforeAll(async () => {
  database = await createTestDatabase();
  admin = new pg.Client({ connectionString: database.dsn });
  await admin.connect();
  // Without a name in the path pg_catalog would come first.
  await admin.query(`
    create schema virtual;
    create table virtual.moment as select now() as at;
    create function virtual.clock_timestamp() returns timestamptz volatile language sql as 'select at from virtual.moment';
    alter database "${new URL(database.dsn).pathname.slice(1)}" set search_path = virtual, pg_catalog, public;
  `);
});
afterAll(async () => {
  await admin.end();
  await database.close();
});

/** The place of a breaker: the key's own, or that of a model. */
const PLACES = ['', ...MODELS] as const;
type Place = (typeof PLACES)[number];
const OWNERS = ['ann', 'bob'] as const;
type Owner = (typeof OWNERS)[number];

interface Report {
  do: 'report';
  model: (typeof MODELS)[number];
  class: CallClass;
  ageMs: number;
  retryAfterMs: number | null;
  /** Whether the call was the probe of the key and of the model, if one is under way. */
  probe: { key: boolean; model: boolean };
  owner: Owner;
  batch: number;
  idx: number;
  /** Another batch that called so long ago. */
  other: { batch: number; ageMs: number } | null;
}

type Step =
  | { do: 'wait'; ms: number }
  /** Waits until the breaker half-opens, if it will. */
  | { do: 'wait for half-open'; place: Place }
  | Report
  /** A 429 of a call that was sent before: its end is so much after that of the key's breaker. */
  | { do: 'extend'; ms: number; ageMs: number }
  | { do: 'take probe'; place: Place; owner: Owner }
  | { do: 'release probe'; place: Place; owner: Owner }
  | { do: 'reset' };

const ms = fc.oneof(
  fc.constantFrom(0, 1, 999, 1_000, 1_001, 2_000, 4_999, 5_000, 5_001, 9_999, 10_000, 59_999, 60_000, 60_001, 600_000),
  fc.constantFrom(3_660_001),
  fc.nat(70_000),
);
const short = fc.oneof(fc.constant(0), fc.nat(3_000));
const model = fc.constantFrom(...MODELS);
const place = fc.constantFrom(...PLACES);
const owner = fc.constantFrom(...OWNERS);
const classes = fc.constantFrom(...(Object.keys(BREAKER_EFFECTS) as CallClass[]));
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('wait' as const), ms: fc.oneof(ms, short, short) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('wait for half-open' as const), place }) },
  {
    weight: 16,
    arbitrary: fc.record({
      do: fc.constant('report' as const),
      model,
      class: fc.oneof(fc.constantFrom('server_error', 'server_error', 'network', 'rate_limit_long'), classes),
      ageMs: fc.oneof(fc.constant(0), ms),
      retryAfterMs: fc.option(ms),
      probe: fc.record({ key: fc.boolean(), model: fc.boolean() }),
      owner,
      batch: fc.nat(2),
      idx: fc.nat(3),
      other: fc.option(fc.record({ batch: fc.nat(2), ageMs: fc.nat(9_000) })),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('extend' as const),
      ms: fc.oneof(fc.constantFrom(0, 1_000, 1_001), fc.nat(2_500)),
      ageMs: ms,
    }),
  },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('take probe' as const), place, owner }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('release probe' as const), place, owner }) },
  { weight: 1, arbitrary: fc.constant({ do: 'reset' as const }) },
);

const REPORT: Report = {
  do: 'report',
  model: 'a',
  class: 'server_error',
  ageMs: 0,
  retryAfterMs: null,
  probe: { key: false, model: false },
  owner: 'ann',
  batch: 0,
  idx: 0,
  other: null,
};
const PROBED = { key: true, model: true };
const opens: Step[] = [0, 1, 2].map((idx) => ({ ...REPORT, idx }));
const take = (place: Place): Step[] => [
  { do: 'wait for half-open', place },
  { do: 'wait', ms: 1_000 },
  { do: 'take probe', place, owner: 'bob' },
];

const EXAMPLES: Step[][] = [
  // The steps of the back-off.
  [...opens, ...Array.from({ length: 9 }, () => [...take('a'), { ...REPORT, probe: PROBED }]).flat()],
  // A probe whose lease ends, and one that is released to the other owner.
  [
    ...opens,
    ...take('a'),
    { do: 'take probe', place: 'a', owner: 'ann' },
    { do: 'wait', ms: PROBE_LEASE_MS },
    { do: 'take probe', place: 'a', owner: 'ann' },
    { do: 'release probe', place: 'a', owner: 'ann' },
    { do: 'take probe', place: 'a', owner: 'ann' },
    { do: 'take probe', place: 'a', owner: 'bob' },
  ],
  // A model that rests twice, and fails then.
  [
    { ...REPORT, class: 'forbidden' },
    { do: 'wait', ms: 60_000 },
    { ...REPORT, class: 'forbidden' },
    { ...REPORT, class: 'success' },
    { do: 'wait', ms: 60_000 },
    ...opens,
  ],
  // One batch beside another that calls, until that one fails too.
  [
    ...[0, 1, 2, 3].map((idx): Step => ({ ...REPORT, idx, other: { batch: 1, ageMs: 50 } })),
    { do: 'wait', ms: 1 },
    { ...REPORT, batch: 1 },
  ],
  // No credit, and its probe.
  [
    { ...REPORT, class: 'account' },
    { ...REPORT, class: 'success', ageMs: 500 },
    ...take(''),
    { ...REPORT, class: 'account', probe: PROBED },
    ...take(''),
    { ...REPORT, class: 'success', probe: PROBED },
  ],
];

/** The states that the steps of all runs reached: a property that only saw closed breakers would prove little. */
const reached = { probes: 0, refusedProbes: 0, ignored: 0, highestStep: 0, auth: 0, account: 0, forbidden: 0, kept: 0 };

test('TypeScript and Postgres come to the same breakers', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 30 }), (steps) => compare(steps)),
    { numRuns: 150, examples: EXAMPLES.map((one) => [one] as [Step[]]) },
  );
  expect(reached.highestStep).toBe(7);
  for (const count of Object.values(reached)) expect(count).toBeGreaterThan(0);
});

async function compare(steps: readonly Step[]): Promise<void> {
  const { db } = database;
  const key = randomUUID();
  const hostKey = { breakerKey: key } as HostKey;
  let now = 1_000_000;
  let own: Breaker | null = null;
  let models = new Map<string, ModelState>();
  const probes = new Map<Place, string>();
  const cache = createBreakerCache();
  await admin.query('delete from breakers');
  await admin.query('delete from breaker_failures');
  const setClock = () => admin.query('update virtual.moment set at = to_timestamp($1::float8 / 1000)', [START + now]);
  await setClock();
  const breakerAt = (at: Place) => (at === '' ? own : (models.get(at)?.breaker ?? null));

  for (const given of steps) {
    const one: Step = given.do === 'extend' ? extending(given, own, now) : given;
    switch (one.do) {
      case 'wait':
        now += one.ms;
        await setClock();
        break;
      case 'wait for half-open': {
        const breaker = breakerAt(one.place);
        if (breaker !== null && breaker.openUntil !== Number.POSITIVE_INFINITY) now = Math.max(now, breaker.openUntil);
        await setClock();
        break;
      }
      case 'take probe': {
        const needed = cache.halfOpen(hostKey, one.place === '' ? 'rests never' : one.place, one.owner, now);
        const free = one.place === '' ? needed.key : needed.model;
        const id = randomUUID();
        const probe = { id, owner: one.owner, leaseMs: PROBE_LEASE_MS };
        expect(await takeProbe(db, { breakerKey: key, model: one.place }, probe)).toBe(free);
        if (free) {
          probes.set(one.place, id);
          cache.setProbe(key, one.place, now + PROBE_LEASE_MS);
          reached.probes++;
        } else reached.refusedProbes++;
        break;
      }
      case 'release probe': {
        const probe = probes.get(one.place);
        if (probe === undefined) break;
        await releaseProbe(db, key, probe, one.owner);
        cache.endProbe(key, one.place, one.owner, now);
        probes.delete(one.place);
        const breaker = breakerAt(one.place);
        if (breaker === null) break;
        const moved = { ...breaker, openUntil: Math.max(breaker.openUntil, now) };
        if (one.place === '') own = moved;
        else models.set(one.place, { breaker: moved, failures: [] });
        break;
      }
      case 'reset':
        await deleteBreakers(db, key);
        cache.forget(key);
        own = null;
        models = new Map();
        probes.clear();
        break;
      case 'report': {
        // A call that is not the probe any more has none to show: Postgres knows who holds it.
        const keyProbe: string | null = one.probe.key ? (probes.get('') ?? null) : null;
        const modelProbe: string | null = one.probe.model ? (probes.get(one.model) ?? null) : null;
        const failed = failuresOf(one, now);
        const event = { class: one.class, retryAfterMs: one.retryAfterMs, startedAt: now - one.ageMs };
        const before = models.get(one.model) ?? { breaker: null, failures: [] };
        const nextOwn: Breaker | null = nextKeyBreaker(own, { ...event, probe: keyProbe !== null }, now);
        const next = nextModelState(before, { ...event, probe: modelProbe !== null }, failed, now);
        const probe = { key: keyProbe !== null, model: modelProbe !== null };
        cache.apply(key, one.model, { ...event, owner: one.owner, failed, probe }, now);
        await record(one, key, { keyProbe, modelProbe }, failed, now);
        if (nextOwn !== own) probes.delete('');
        if (next.breaker !== before.breaker) probes.delete(one.model);
        if (next === before && before.breaker !== null) reached.ignored++;
        if (next.breaker === null && next.failures.length > 0) reached.kept++;
        own = nextOwn;
        models.set(one.model, next);
        reached.highestStep = Math.max(reached.highestStep, next.breaker?.step ?? 0);
        if (own?.reason === 'auth') reached.auth++;
        if (own?.reason === 'account') reached.account++;
        if (next.breaker?.reason === 'forbidden') reached.forbidden++;
        break;
      }
    }

    const rows = await readBreakers(db);
    const stored = new Map(rows.map((row) => [row.model, row]));
    for (const at of PLACES) {
      const row = stored.get(at);
      const until = row?.open_for_ms == null ? Number.POSITIVE_INFINITY : now + row.open_for_ms;
      const breaker = breakerAt(at);
      const over = breaker?.reason === 'forbidden' && breaker.openUntil <= now;
      expect(row?.reason ? { reason: row.reason, step: row.step, openUntil: rounded(until) } : null).toEqual(
        breaker && !over ? { ...breaker, openUntil: rounded(breaker.openUntil) } : null,
      );
    }

    // A replica that reads the breakers believes what this one knows, now and later.
    const fresh = createBreakerCache();
    const read = rows.map((row) => ({ ...row, failures: parseFailures(row.failures, now) }));
    fresh.replace(read, now, 0, () => false);
    for (const name of MODELS) {
      for (const asking of OWNERS) {
        for (const later of [0, 1_000, PROBE_LEASE_MS, 60_000]) {
          const known = cache.health(hostKey, name, asking, now + later);
          expect(fresh.health(hostKey, name, asking, now + later)).toBe(known);
          if (known === 'auth') continue;
          expect(fresh.reopensIn(hostKey, name, asking, now + later)).toBeCloseTo(
            cache.reopensIn(hostKey, name, asking, now + later),
            2,
          );
        }
      }
    }
  }
}

function failuresOf({ batch, idx, other }: Report, now: number): Failure[] {
  const own = { batchId: batchNo(batch), idx, at: now };
  if (other === null || other.batch === batch) return [own];
  return [own, { batchId: batchNo(other.batch), idx: CALLED, at: now - other.ageMs }];
}

function extending({ ms, ageMs }: Extract<Step, { do: 'extend' }>, breaker: Breaker | null, now: number): Report {
  const end = breaker === null || breaker.reason === 'auth' ? now : breaker.openUntil;
  const retryAfterMs = Math.max(0, end + ms - now);
  return { ...REPORT, class: 'rate_limit_long', ageMs, retryAfterMs };
}

/** Sends an outcome to Postgres as lib/keypool/writes.ts does, but always: Postgres has to ignore by itself what changes nothing. */
async function record(
  outcome: Report,
  breakerKey: string,
  { keyProbe, modelProbe }: { keyProbe: string | null; modelProbe: string | null },
  failed: readonly Failure[],
  now: number,
): Promise<void> {
  const { db } = database;
  const { ageMs, model, owner } = outcome;
  const call = { breakerKey, ageMs, probeId: keyProbe, owner };
  switch (BREAKER_EFFECTS[outcome.class]) {
    case 'close':
      return closeBreaker(db, { breakerKey, ageMs: 0, probeId: keyProbe }, model);
    case 'auth':
      return recordAuthFailure(db, breakerKey);
    case 'account':
      return recordAccountFailure(db, call);
    case 'retry_after':
      return recordRetryAfter(db, call, outcome.retryAfterMs ?? 0);
    case 'forbidden':
      return recordForbidden(db, { breakerKey, ageMs, probeId: modelProbe }, model);
    case 'backoff': {
      const reason = outcome.class === 'network' ? 'network' : 'server_error';
      if (modelProbe !== null) return recordProbeFailure(db, { ...call, probeId: modelProbe }, model, reason);
      const failures = failed.map((one) => ({ ...one, at: now - one.at }));
      return recordFailures(db, { breakerKey, model, reason, owner, failures });
    }
    case 'none':
      return;
  }
}

/** Timestamps are microseconds. */
const rounded = (time: number) => Math.round(time * 100) / 100;
