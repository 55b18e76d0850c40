import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { TOKEN_PARTS } from '../../../lib/model/usage-event.ts';
import { usageSummary, usageTimeseries } from '../../../lib/usage/figures.ts';
import { parseFilter } from '../../../lib/usage/query.ts';
import { beginReport } from '../../../lib/usage/usage.sql.ts';
import { beginFigures, DIMENSIONS, type Dimension, sumFigures } from '../../../lib/usage/usage-figures.sql.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type AttributionFixture, type EventFixture, insertEvents, insertOwner } from '../../support/usage-events.ts';

const EVENTS = 1500;
const MINUTE = 60_000;
const START = Math.floor(Date.now() / MINUTE) * MINUTE - 40 * MINUTE;
const PERIOD = { from: new Date(START).toISOString(), to: new Date(START + 30 * MINUTE).toISOString() };

/** Batches of which several have the same owner; the last has none, like one whose attribution was deleted. */
const OWNERS: (AttributionFixture | null)[] = [
  { owner: 'a', policy: 'gold', project: 'site', team: 'web', principalId: 'u1', credentialId: 'k1' },
  { owner: 'a', policy: 'gold', project: 'shop', team: 'web', principalId: 'u1', credentialId: 'k2' },
  { owner: 'b', policy: 'silver', team: 'web', principalId: 'u2', credentialId: 'k1' },
  { owner: 'b', policy: 'silver', principalId: 'u3', credentialId: 'k3' },
  { owner: 'c', credentialId: 'k4' },
  null,
];
const BATCHES = OWNERS.map((_, n) => uuidv7(START - 1000 * (n + 1)));
const route = (model: string | null, provider: string | null, host: string | null, hostKey: string) => ({
  model,
  provider,
  host,
  hostKey,
});
/** Routes of which several have the same names. */
const ROUTES = [
  route('m1', 'openai', 'h1', 'k1'),
  route('m1', 'openai', 'h1', 'k2'),
  route('m1', 'azure', 'h2', 'k3'),
  route('m2', 'openai', 'h1', 'k1'),
  route(null, null, null, 'k9'),
];

const maybe = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: undefined });
const count = fc.oneof(fc.integer({ min: 0, max: 5000 }), fc.constant(2 ** 53 - 1));
const event = fc.record({
  batch: fc.nat(BATCHES.length - 1),
  offset: fc.integer({ min: 0, max: 30 * MINUTE - 1 }),
  route: maybe(fc.nat(ROUTES.length - 1)),
  status: fc.constantFrom(0, 200, 200, 400, 529),
  sent: fc.boolean(),
  durationMs: fc.oneof(fc.integer({ min: 0, max: 50 }), fc.integer({ min: 0, max: 900_000 })),
  errorKind: maybe(fc.constantFrom('cancelled', 'upstream_error')),
  finishReason: maybe(fc.constantFrom('stop', 'length', 'tool_calls')),
  tokens: fc.record(Object.fromEntries(TOKEN_PARTS.map((part) => [part, count])), { requiredKeys: [] }),
  costNanos: maybe(fc.oneof(fc.bigInt({ min: 0n, max: 10_000_000n }), fc.constant(2n ** 63n - 1n))),
});
const [drawn] = fc.sample(fc.array(event, { minLength: EVENTS, maxLength: EVENTS }), { numRuns: 1, seed: 20261130 });
const events = drawn!.map(({ batch, offset, sent, route, ...rest }, idx) => ({
  ...(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)) as typeof rest),
  batch,
  batchId: BATCHES[batch]!,
  idx,
  ts: new Date(START + offset),
  startedAt: sent ? new Date(START + offset) : null,
  ...(route === undefined ? {} : { route: ROUTES[route]! }),
}));
type Drawn = (typeof events)[number];

const VALUES: Record<Dimension | 'source', (e: Drawn) => string | number | null> = {
  source: () => 'batch',
  model: (e) => e.route?.model ?? null,
  host: (e) => e.route?.host ?? null,
  provider: (e) => e.route?.provider ?? null,
  policy: (e) => OWNERS[e.batch]?.policy ?? null,
  project: (e) => OWNERS[e.batch]?.project ?? null,
  team: (e) => OWNERS[e.batch]?.team ?? null,
  principal_id: (e) => OWNERS[e.batch]?.principalId ?? null,
  credential_id: (e) => OWNERS[e.batch]?.credentialId ?? null,
  batch_id: (e) => e.batchId,
  error_kind: (e) => e.errorKind ?? null,
  finish_reason: (e) => e.finishReason ?? null,
  status: (e) => e.status,
};
type GroupBy = keyof typeof VALUES;

/** The figures of a group of events, added up one by one; integers as text. */
function plainly(group: readonly Drawn[]): Record<string, unknown> {
  const tokens: Record<string, string> = {};
  for (const part of TOKEN_PARTS) {
    const sum = group.reduce((n, e) => n + BigInt(e.tokens[part] ?? 0), 0n);
    if (sum > 0n) tokens[part] = String(sum);
  }
  const priced = group.filter((e) => e.costNanos !== undefined);
  const unpriced = group.filter((e) => e.status > 0 && e.costNanos === undefined).length;
  const cost = String(priced.reduce((n, e) => n + e.costNanos!, 0n));
  const sent = group.filter((e) => e.startedAt !== null).map((e) => e.durationMs);
  sent.sort((a, b) => a - b);
  const share = (p: number) => sent[Math.ceil(p * sent.length) - 1] ?? null;
  const sum = sent.reduce((a, b) => a + b, 0);
  return {
    requests: group.length,
    errors: group.filter((e) => e.errorKind !== undefined).length,
    tokens,
    cost_nanos: priced.length > 0 ? cost : unpriced > 0 ? null : '0',
    unpriced,
    duration_ms: {
      avg: sent.length === 0 ? null : Math.round((sum * 1000) / sent.length) / 1000,
      p50: share(0.5),
      p95: share(0.95),
      p99: share(0.99),
      max: sent.at(-1) ?? null,
    },
  };
}

function expected(matching: readonly Drawn[], groupBy: readonly GroupBy[], intervalMs: number | null): string[] {
  const groups = Map.groupBy(matching, (e) =>
    JSON.stringify([
      intervalMs === null ? null : new Date(Math.floor(e.ts.getTime() / intervalMs) * intervalMs).toISOString(),
      ...groupBy.map((name) => VALUES[name](e)),
    ]),
  );
  return [...groups].map(([key, group]) => canonical(key, plainly(group))).sort();
}

/** One text for a row, whichever way its integers are kept: numbers that are exact, or digits. */
const canonical = (key: string, figures: Record<string, unknown>) =>
  `${key} ${JSON.stringify(figures).replaceAll('"', '')}`;

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
  for (const [n, owner] of OWNERS.entries()) if (owner) await insertOwner(database.db, BATCHES[n]!, owner);
  await insertEvents(database.db, events as EventFixture[]);
}, 60_000);
afterAll(() => database.close());

async function found(
  groupBy: readonly GroupBy[],
  interval: string | null,
  filter: string,
  owner: string | null,
  mostDurations?: number,
): Promise<string[]> {
  const query = new URLSearchParams(`${filter}&${groupBy.map((name) => `group_by=${name}`).join('&')}`);
  query.set('from', PERIOD.from);
  query.set('to', PERIOD.to);
  if (interval !== null) query.set('interval', interval);
  const { rows } = await (interval === null ? usageSummary : usageTimeseries)(
    database.db,
    { query, owner },
    mostDurations,
  );
  return rows
    .map(({ group, bucket, ...figures }: { group?: object; bucket?: string }) =>
      canonical(JSON.stringify([bucket ?? null, ...Object.values(group ?? {})]), figures),
    )
    .sort();
}

const FILTERS: [query: string, owner: string | null, matches: (e: Drawn) => boolean][] = [
  ['', null, () => true],
  ['', 'b', (e) => OWNERS[e.batch]?.owner === 'b'],
  ['status_class=2', null, (e) => e.status === 200],
  ['error=true', null, (e) => e.errorKind !== undefined],
  ['provider=openai', null, (e) => e.route?.provider === 'openai'],
  ['policy=gold&model=m1', 'a', (e) => OWNERS[e.batch]?.policy === 'gold' && e.route?.model === 'm1'],
];
const INTERVALS: [string | null, number | null][] = [
  [null, null],
  ['7s', 7000],
  ['1m', MINUTE],
  ['1d', 1440 * MINUTE],
];

test.each(Object.keys(VALUES) as GroupBy[])(
  'figures by %s, whole and by buckets, are those of adding up event by event',
  async (dimension) => {
    for (const [interval, ms] of INTERVALS) {
      for (const [query, owner, matches] of FILTERS) {
        const wanted = expected(events.filter(matches), [dimension], ms);
        expect(await found([dimension], interval, query, owner)).toEqual(wanted);
      }
    }
  },
);

test('figures by any dimensions together, in one pass or two, are those of adding up event by event', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.subarray(Object.keys(VALUES) as GroupBy[], { minLength: 2 }),
      fc.constantFrom(...INTERVALS),
      fc.constantFrom(...FILTERS),
      fc.constantFrom(undefined, 0),
      async (groupBy, [interval, ms], [query, owner, matches], mostDurations) => {
        const rows = await found(groupBy, interval, query, owner, mostDurations);
        expect(rows).toEqual(expected(events.filter(matches), groupBy, ms));
      },
    ),
    { numRuns: 60, endOnFailure: true },
  );
}, 60_000);

test('every way to gather them gives the same sums', async () => {
  const query = new URLSearchParams(PERIOD);
  await fc.assert(
    fc.asyncProperty(fc.subarray([...DIMENSIONS]), fc.constantFrom(null, MINUTE), async (dimensions, interval) => {
      const ways = await database.db.transaction(async (tx) => {
        const filter = parseFilter({ query, owner: null }, await beginReport(tx), []);
        await beginFigures(tx, filter);
        const rows = [];
        for (const durations of [true, false]) {
          for (const fewBatches of [true, false]) {
            rows.push(await sumFigures(tx, filter, dimensions, interval, { durations, fewBatches }));
          }
        }
        return rows;
      });
      const [first, ...others] = ways.map((rows) =>
        rows.map(({ durations, duration_sum, duration_max, ...row }) => JSON.stringify(row)).sort(),
      );
      for (const other of others) expect(other).toEqual(first);
    }),
    { numRuns: 15, endOnFailure: true },
  );
}, 60_000);
