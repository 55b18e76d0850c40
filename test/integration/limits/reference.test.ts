import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { reserve } from '../../../lib/limits/reserve.ts';
import type { BucketRule } from '../../../lib/limits/rules.ts';
import { charge, refund } from '../../../lib/limits/settle.ts';
import { add, type BucketState, giveBack, roll, room, waitSeconds } from '../../support/limits-reference.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let pg: TestDatabase;
beforeAll(async () => {
  pg = await createTestDatabase();
});
afterAll(() => pg.close());

const sql = (text: string, ...values: unknown[]) => pg.sql(text, values);

/** A rule, and a state that its bucket may be in: taken some time ago, in this window, the one before, or long ago. */
const bucket = fc
  .record({
    meter: fc.constantFrom('requests' as const, 'requests' as const, 'tokens' as const),
    amount: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.double({ min: 1, max: 12, noNaN: true })),
    window: fc.integer({ min: 1, max: 100_000 }),
    strategy: fc.constantFrom(
      'token-bucket' as const,
      'leaky-bucket' as const,
      'fixed-window' as const,
      'sliding-window' as const,
      'session-window' as const,
    ),
    used: fc.oneof(fc.integer({ min: 0, max: 12 }), fc.double({ min: 0, max: 12, noNaN: true })),
    previous: fc.integer({ min: 0, max: 12 }),
    windowsAgo: fc.constantFrom(0, 0, 1, 2),
    part: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  .filter(
    ({ meter, strategy }) => meter === 'requests' || strategy === 'fixed-window' || strategy === 'sliding-window',
  );
type Bucket = typeof bucket extends fc.Arbitrary<infer T> ? T : never;

const buckets = fc.array(bucket, { minLength: 1, maxLength: 4 });
/** Which of the buckets each request has rules for, as bits. */
const masks = fc.array(fc.integer({ min: 1, max: 15 }), { minLength: 1, maxLength: 25 });

const ruleOf = ({ meter, amount, window, strategy }: Bucket): BucketRule => ({
  bucketId: uuidv7(),
  scope: 'policy',
  name: 'default',
  meter,
  amount,
  window,
  strategy,
});

/** Puts a bucket into its state; counted windows hold whole counts, as they do when requests made them. */
async function prepare(rule: BucketRule, of: Bucket, nowUs: number): Promise<BucketState> {
  const window = of.window * 1e6;
  const aligned = of.strategy === 'fixed-window' || of.strategy === 'sliding-window';
  const used = of.strategy === 'token-bucket' || of.strategy === 'leaky-bucket' ? of.used : Math.floor(of.used);
  const anchorUs = (aligned ? nowUs - (nowUs % window) : nowUs - Math.floor(of.part * window)) - of.windowsAgo * window;
  const previous = of.strategy === 'sliding-window' ? of.previous : 0;
  await sql(
    'insert into limit_buckets (id, used, previous, anchor_us) values ($1::uuid, $2::float8, $3::float8, $4::bigint)',
    rule.bucketId,
    used,
    previous,
    anchorUs,
  );
  return { used, previous, anchorUs };
}

async function stateOf(rule: BucketRule): Promise<BucketState> {
  const [row] = await sql('select used, previous, anchor_us from limit_buckets where id = $1::uuid', rule.bucketId);
  return { used: row?.used, previous: row?.previous, anchorUs: row?.anchor_us };
}

async function databaseNow(): Promise<number> {
  const [row] = await sql('select (extract(epoch from clock_timestamp()) * 1000000)::bigint as now');
  return row?.now;
}

test('Postgres decides and counts as the reference does, to the bit', async () => {
  let refusals = 0;
  await fc.assert(
    fc.asyncProperty(buckets, masks, async (given, wanted) => {
      const now = await databaseNow();
      const rules = given.map(ruleOf);
      const states: BucketState[] = [];
      for (const [i, rule] of rules.entries()) states.push(await prepare(rule, given[i]!, now));
      const sets = new Map(wanted.map((mask) => [mask, rules.filter((_, i) => mask & (1 << i))]));
      const requests = wanted.map((mask, idx) => ({ batchId: uuidv7(), idx, claimNo: 1, rules: sets.get(mask)! }));
      const verdicts = await reserve(pg.db, requests, 400);
      const counted = verdicts.find((verdict) => verdict.ok && verdict.atUs > 0);
      const at = counted?.ok ? counted.atUs : now;

      const expected = rules.map((rule, i) => roll(rule, states[i]!, at));
      for (const [i, request] of requests.entries()) {
        const own = request.rules.map((rule) => rules.indexOf(rule));
        const refusing = own.filter((b) => room(rules[b]!, expected[b]!, at) < 1);
        const verdict = verdicts[i]!;
        expect(verdict.ok).toBe(refusing.length === 0);
        if (verdict.ok) {
          for (const b of own) if (rules[b]!.meter === 'requests') expected[b] = add(expected[b]!, 1);
        } else {
          refusals++;
          const waits = refusing.map((b) => waitSeconds(rules[b]!, expected[b]!, at));
          // Refusals do not carry the instant, so a call that only refused is a moment off the reference.
          if (counted) expect(verdict.retryInSeconds).toBe(Math.max(...waits));
        }
      }
      const touched = new Set(requests.flatMap((r, i) => (verdicts[i]!.ok ? r.rules : [])));
      for (const [b, rule] of rules.entries()) {
        if (rule.meter === 'requests' && touched.has(rule)) expect(await stateOf(rule)).toEqual(expected[b]);
        else expect(await stateOf(rule)).toEqual(states[b]);
      }
    }),
    { numRuns: 150 },
  );
  expect(refusals).toBeGreaterThan(0);
});

test('refunds and charges leave the state that the reference comes to', async () => {
  await fc.assert(
    fc.asyncProperty(bucket, fc.integer({ min: 1, max: 8 }), fc.nat(250_000), async (given, count, seconds) => {
      const rule = ruleOf(given);
      const now = await databaseNow();
      const before = await prepare(rule, given, now);
      const atUs = now - seconds * 1_000_000;
      if (rule.meter === 'tokens') await charge(pg.db, [{ rules: [rule], tokens: { input: count } }]);
      else await refund(pg.db, Array(count).fill({ batchId: uuidv7(), idx: 0, claimNo: 1, rules: [rule], atUs }));
      // The function's own instant is in what it wrote.
      const [row] = await sql('select idle_us from limit_buckets where id = $1::uuid', rule.bucketId);
      const at = row?.idle_us - 2 * rule.window * 1e6;
      let expected = roll(rule, before, at);
      if (rule.meter === 'tokens') expected = add(expected, count);
      else for (let i = 0; i < count; i++) expected = giveBack(rule, expected, at, atUs);
      const after = await stateOf(rule);
      expect(after.used).toBeCloseTo(expected.used, 9);
      expect(after.previous).toBe(expected.previous);
      if (rule.strategy !== 'session-window' || expected.used > 0) expect(after.anchorUs).toBe(expected.anchorUs);
    }),
    { numRuns: 200 },
  );
});
