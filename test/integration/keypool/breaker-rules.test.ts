import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { BREAKER_EFFECTS, type Breaker, nextBreaker, nextForbidden } from '../../../lib/keypool/breaker.ts';
import { createBreakerCache } from '../../../lib/keypool/breaker-cache.ts';
import {
  closeBreaker,
  deleteBreakers,
  readBreakers,
  recordAuthFailure,
  recordBackoff,
  recordForbidden,
  recordRetryAfter,
  releaseProbe,
  takeProbe,
} from '../../../lib/keypool/keypool.sql.ts';
import type { HostKey } from '../../../lib/model/catalog.ts';
import type { CallClass } from '../../../lib/upstream/call-result.ts';
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

type Step =
  | { do: 'wait'; ms: number }
  /** Waits until the breaker half-opens, if it will. */
  | { do: 'wait for half-open' }
  | { do: 'report'; class: CallClass; ageMs: number; retryAfterMs: number | null; probe: boolean }
  /** A 429 of a call that was sent before: its end is so much after that of the breaker. */
  | { do: 'extend'; ms: number; ageMs: number }
  | { do: 'forbid'; model: (typeof MODELS)[number]; ageMs: number }
  | { do: 'take probe' }
  | { do: 'release probe' }
  | { do: 'reset' };

const ms = fc.oneof(
  fc.constantFrom(0, 1, 999, 1_000, 1_001, 2_000, 4_999, 5_000, 5_001, 59_999, 60_000, 60_001, 3_660_001),
  fc.nat(70_000),
);
const classes = fc.constantFrom(...(Object.keys(BREAKER_EFFECTS) as CallClass[]).filter((one) => one !== 'forbidden'));
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 3, arbitrary: fc.record({ do: fc.constant('wait' as const), ms }) },
  { weight: 4, arbitrary: fc.constant({ do: 'wait for half-open' as const }) },
  {
    weight: 10,
    arbitrary: fc.record({
      do: fc.constant('report' as const),
      class: fc.oneof(fc.constantFrom('server_error', 'network', 'rate_limit_long'), classes),
      ageMs: fc.oneof(fc.constant(0), ms),
      retryAfterMs: fc.option(ms),
      probe: fc.boolean(),
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
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('forbid' as const), model: fc.constantFrom(...MODELS), ageMs: ms }),
  },
  { weight: 4, arbitrary: fc.constant({ do: 'take probe' as const }) },
  { weight: 1, arbitrary: fc.constant({ do: 'release probe' as const }) },
  { weight: 1, arbitrary: fc.constant({ do: 'reset' as const }) },
);

const failAgain: Step[] = [
  { do: 'wait for half-open' },
  { do: 'take probe' },
  { do: 'report', class: 'server_error', ageMs: 0, retryAfterMs: null, probe: true },
];

const takeAgain: Step[] = [
  { do: 'report', class: 'network', ageMs: 0, retryAfterMs: null, probe: false },
  { do: 'wait for half-open' },
  { do: 'take probe' },
  { do: 'take probe' },
  { do: 'wait', ms: PROBE_LEASE_MS },
  { do: 'take probe' },
];

const restAgain: Step[] = [
  { do: 'forbid', model: 'a', ageMs: 0 },
  { do: 'wait', ms: 60_000 },
  { do: 'forbid', model: 'a', ageMs: 0 },
];

/** What the steps of all runs reached: a property that only saw closed breakers would prove little. */
const reached = { probes: 0, refusedProbes: 0, ignored: 0, highestStep: 0, auth: 0, forbidden: 0 };

test('TypeScript and Postgres come to the same breakers', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 25 }), (steps) => compare(steps)),
    { numRuns: 120, examples: [[Array.from({ length: 9 }, () => failAgain).flat()], [takeAgain], [restAgain]] },
  );
  expect(reached.highestStep).toBe(7);
  for (const count of Object.values(reached)) expect(count).toBeGreaterThan(0);
});

async function compare(steps: readonly Step[]): Promise<void> {
  const { db } = database;
  const key = randomUUID();
  const hostKey = { breakerKey: key } as HostKey;
  let now = 1_000_000;
  let breaker: Breaker | null = null;
  let probe: string | null = null;
  const rests = new Map<string, number>();
  const cache = createBreakerCache();
  await admin.query('delete from breakers');
  const setClock = () => admin.query('update virtual.moment set at = to_timestamp($1::float8 / 1000)', [START + now]);
  await setClock();

  for (const given of steps) {
    const one = given.do === 'extend' ? extending(given, breaker, now) : given;
    switch (one.do) {
      case 'wait':
        now += one.ms;
        await setClock();
        break;
      case 'wait for half-open':
        if (breaker !== null && breaker.openUntil !== Number.POSITIVE_INFINITY) now = Math.max(now, breaker.openUntil);
        await setClock();
        break;
      case 'take probe': {
        const free = cache.health(hostKey, 'rests never', now) === 'half_open';
        const id = randomUUID();
        expect(await takeProbe(db, key, id, PROBE_LEASE_MS)).toBe(free);
        if (free) {
          probe = id;
          cache.setProbe(key, now + PROBE_LEASE_MS);
          reached.probes++;
        } else reached.refusedProbes++;
        break;
      }
      case 'release probe':
        if (probe === null) break;
        await releaseProbe(db, key, probe);
        cache.setProbe(key, 0);
        probe = null;
        break;
      case 'reset':
        await deleteBreakers(db, key);
        cache.forget(key);
        rests.clear();
        breaker = null;
        probe = null;
        break;
      case 'forbid': {
        await recordForbidden(db, key, one.model, one.ageMs);
        cache.forbid(key, one.model, now - one.ageMs, now);
        rests.set(one.model, nextForbidden(rests.get(one.model), now - one.ageMs, now));
        reached.forbidden++;
        break;
      }
      case 'report': {
        // A call that is not the probe any more has none to show: Postgres knows who holds it.
        const asProbe: string | null = one.probe ? probe : null;
        const event = { ...one, startedAt: now - one.ageMs, probe: asProbe !== null };
        const next: Breaker | null = nextBreaker(breaker, event, now);
        cache.apply(key, event, now);
        await record(one, key, asProbe);
        if (next === breaker && breaker !== null) reached.ignored++;
        if (next !== breaker) probe = null;
        breaker = next;
        reached.highestStep = Math.max(reached.highestStep, breaker?.step ?? 0);
        if (breaker?.reason === 'auth') reached.auth++;
        break;
      }
    }

    const rows = await readBreakers(db);
    const own = rows.find(({ model }) => model === '');
    const until = own && (own.open_for_ms === null ? Number.POSITIVE_INFINITY : now + own.open_for_ms);
    expect(own ? { reason: own.reason, step: own.step, openUntil: rounded(until!) } : null).toEqual(
      breaker && { ...breaker, openUntil: rounded(breaker.openUntil) },
    );
    const resting = rows.filter(({ model }) => model !== '').map((row) => [row.model, rounded(now + row.open_for_ms!)]);
    expect(Object.fromEntries(resting)).toEqual(Object.fromEntries([...rests].filter(([, end]) => end > now)));

    // A replica that reads the breakers believes what this one knows, now and later.
    const fresh = createBreakerCache();
    fresh.replace(rows, now, 0, () => false);
    for (const model of MODELS) {
      for (const later of [0, 1_000, PROBE_LEASE_MS, 60_000]) {
        const known = cache.health(hostKey, model, now + later);
        expect(fresh.health(hostKey, model, now + later)).toBe(known);
        if (known !== 'auth') {
          expect(fresh.reopensIn(hostKey, model, now + later)).toBeCloseTo(
            cache.reopensIn(hostKey, model, now + later),
            2,
          );
        }
      }
    }
  }
}

function extending({ ms, ageMs }: Extract<Step, { do: 'extend' }>, breaker: Breaker | null, now: number) {
  const end = breaker === null || breaker.reason === 'auth' ? now : breaker.openUntil;
  const retryAfterMs = Math.max(0, end + ms - now);
  return { do: 'report' as const, class: 'rate_limit_long' as const, ageMs, retryAfterMs, probe: false };
}

/** Sends an outcome to Postgres as lib/keypool/writes.ts does, but always: Postgres has to ignore by itself what changes nothing. */
async function record(outcome: Extract<Step, { do: 'report' }>, key: string, probeId: string | null): Promise<void> {
  const { db } = database;
  const call = { breakerKey: key, ageMs: outcome.ageMs, probeId };
  switch (BREAKER_EFFECTS[outcome.class]) {
    case 'close':
      return closeBreaker(db, key, 0);
    case 'auth':
      return recordAuthFailure(db, key);
    case 'retry_after':
      return recordRetryAfter(db, call, outcome.retryAfterMs ?? 0);
    case 'backoff':
      return recordBackoff(db, call, outcome.class === 'network' ? 'network' : 'server_error');
    case 'forbidden':
    case 'none':
      return;
  }
}

/** Timestamps are microseconds. */
const rounded = (time: number) => Math.round(time * 100) / 100;
