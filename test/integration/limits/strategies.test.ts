import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { purgeLimits } from '../../../lib/limits/purge.ts';
import { type ReserveVerdict, reserve } from '../../../lib/limits/reserve.ts';
import type { BucketRule } from '../../../lib/limits/rules.ts';
import { charge, refund, releaseConcurrency } from '../../../lib/limits/settle.ts';
import type { Meter, Strategy } from '../../../lib/model/catalog.ts';
import { countConcurrency } from '../../support/limits-reference.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

// Windows of this many seconds are aligned to 2001 and 2033: no test stands on a boundary.
const LONG = 1_000_000_000;
const HOLD_S = 400;
const BATCH = uuidv7();

let pg: TestDatabase;
let nextIdx = 0;
beforeAll(async () => {
  pg = await createTestDatabase();
});
afterAll(() => pg.close());
beforeEach(async () => {
  await sql('delete from limit_buckets');
  await sql('delete from limit_concurrency');
});

const sql = (text: string, ...values: unknown[]) => pg.sql(text, values);

function rule(strategy: Strategy, amount: number, window: number, meter: Meter = 'requests'): BucketRule {
  return { bucketId: uuidv7(), scope: 'policy', name: 'default', meter, amount, window, strategy };
}
const concurrency = (amount: number) => rule('token-bucket', amount, 0, 'concurrency');

/** Reserves for `n` new items of the same rules. */
function ask(n: number, ...rules: BucketRule[]): Promise<ReserveVerdict[]> {
  return reserve(pg.db, items(n, rules), HOLD_S);
}
const items = (n: number, rules: BucketRule[]) =>
  Array.from({ length: n }, () => ({ batchId: BATCH, idx: nextIdx++, claimNo: 1, rules }));
const passed = (verdicts: ReserveVerdict[]) => verdicts.filter((verdict) => verdict.ok).length;

/** Makes a bucket look as if everything in it had happened `seconds` earlier. */
async function age(of: BucketRule, seconds: number) {
  await sql(
    'update limit_buckets set anchor_us = anchor_us - $2::bigint where id = $1::uuid',
    of.bucketId,
    seconds * 1e6,
  );
}
async function usedOf(of: BucketRule): Promise<number> {
  const [row] = await sql('select used from limit_buckets where id = $1::uuid', of.bucketId);
  return row?.used;
}

describe('strategies of requests', () => {
  test('token-bucket starts full, refills amount/window, needs 1', async () => {
    const bucket = rule('token-bucket', 10, 1000);
    expect(await ask(12, bucket)).toMatchObject([
      ...Array(10).fill({ ok: true }),
      ...Array(2).fill({ ok: false, rule: bucket, retryInSeconds: 100 }),
    ]);
    await age(bucket, 100);
    expect(passed(await ask(2, bucket))).toBe(1);
    await age(bucket, 1_000_000);
    expect(passed(await ask(12, bucket))).toBe(10);
  });

  test('sliding-window counts current + 1 + previous x (1 - elapsed fraction)', async () => {
    const bucket = rule('sliding-window', 1000, LONG);
    expect(passed(await ask(600, bucket))).toBe(600);
    await age(bucket, LONG);
    const verdicts = await ask(1000, bucket);
    const { atUs } = verdicts[0] as { atUs: number };
    const faded = 1 - (atUs % (LONG * 1e6)) / (LONG * 1e6);
    expect(passed(verdicts)).toBe(Math.floor(1000 - 600 * faded));
    await age(bucket, 2 * LONG);
    expect(passed(await ask(1001, bucket))).toBe(1000);
  });

  test('fixed-window is epoch-aligned', async () => {
    const bucket = rule('fixed-window', 5, LONG);
    const [first, , , , , refused] = await ask(6, bucket);
    const { atUs } = first as { atUs: number };
    const left = Math.ceil((LONG * 1e6 - (atUs % (LONG * 1e6))) / 1e6);
    expect(refused).toEqual({ ok: false, rule: bucket, retryInSeconds: left });
    const [row] = await sql('select anchor_us from limit_buckets');
    expect(row?.anchor_us).toBe(LONG * 1e6);
    await age(bucket, LONG);
    expect(passed(await ask(6, bucket))).toBe(5);
  });

  test('leaky-bucket drains amount/window, takes while level + 1 fits, rejects and never queues', async () => {
    const bucket = rule('leaky-bucket', 4, 400);
    expect(await ask(5, bucket)).toMatchObject([
      ...Array(4).fill({ ok: true }),
      { ok: false, rule: bucket, retryInSeconds: 100 },
    ]);
    await age(bucket, 250);
    expect(passed(await ask(4, bucket))).toBe(2);
    // 10.95 s less the time since the last call.
    await age(bucket, 39.05);
    expect(await ask(1, bucket)).toMatchObject([{ ok: false, retryInSeconds: 11 }]);
  });

  test('session-window is anchored by the first request and resets when the window has passed and a request comes', async () => {
    const bucket = rule('session-window', 3, 1000);
    expect(passed(await ask(2, bucket))).toBe(2);
    await age(bucket, 899.05);
    expect(await ask(2, bucket)).toMatchObject([{ ok: true }, { ok: false, retryInSeconds: 101 }]);
    await age(bucket, 101);
    const refused = { ok: false, rule: bucket, retryInSeconds: 1000 };
    expect(await ask(4, bucket)).toMatchObject([...Array(3).fill({ ok: true }), refused]);
  });

  test.each(['token-bucket', 'sliding-window', 'fixed-window', 'leaky-bucket', 'session-window'] as const)(
    '%s: equal passes',
    async (strategy) => {
      const bucket = rule(strategy, 3, LONG);
      expect((await ask(4, bucket)).map((verdict) => verdict.ok)).toEqual([true, true, true, false]);
    },
  );

  test('a raised amount holds at once, and a lowered one too', async () => {
    const bucket = rule('token-bucket', 5, LONG);
    expect(passed(await ask(9, bucket))).toBe(5);
    expect(passed(await ask(9, { ...bucket, amount: 8 }))).toBe(3);
    expect(passed(await ask(9, { ...bucket, amount: 2 }))).toBe(0);
  });
});

describe('all rules of a request at once', () => {
  test('one that would exceed its amount refuses the request and nothing is counted', async () => {
    const [wide, tight, gauge] = [rule('fixed-window', 10, LONG), rule('token-bucket', 2, LONG), concurrency(10)];
    expect(passed(await ask(5, wide, tight, gauge))).toBe(2);
    expect([await usedOf(wide), await usedOf(tight)]).toEqual([2, 2]);
    expect(await countConcurrency(pg.db, gauge.bucketId)).toBe(2);
  });

  test('the rule with the longest wait gives the answer', async () => {
    const [short, long] = [rule('token-bucket', 1, 10), rule('token-bucket', 1, 1000)];
    expect((await ask(2, short, long))[1]).toMatchObject({ ok: false, rule: long });
    expect((await ask(1, long, short))[0]).toMatchObject({ ok: false, rule: long });
  });

  test('verdicts follow the order of the requests, and requests without rules pass between them', async () => {
    const [one, both] = [[rule('fixed-window', 2, LONG)], [rule('fixed-window', 1, LONG)]];
    both.push(one[0]!);
    const order = [one, [], both, one, both, [], one];
    const requests = order.map((rules, idx) => ({ batchId: BATCH, idx, claimNo: 1, rules }));
    const verdicts = await reserve(pg.db, requests, HOLD_S);
    expect(verdicts.map((verdict) => verdict.ok)).toEqual([true, true, true, false, false, true, false]);
    expect(verdicts[3]).toMatchObject({ rule: one[0] });
    expect(await usedOf(one[0]!)).toBe(2);
    expect(await usedOf(both[0]!)).toBe(1);
  });

  test('requests without rules make no query', async () => {
    const unreachable = new Proxy(pg.db, {
      get: () => () => {
        throw new Error('a query was made');
      },
    });
    expect(await reserve(unreachable, items(3, []), HOLD_S)).toEqual(Array(3).fill({ ok: true, atUs: 0 }));
    await charge(unreachable, [{ rules: [rule('fixed-window', 1, 1)], tokens: { input: 5 } }]);
    await refund(unreachable, [{ batchId: BATCH, idx: 0, claimNo: 1, atUs: 0, rules: [] }]);
    expect(await releaseConcurrency(unreachable, [])).toBe(0);
  });

  test('each model of a wildcard entry fills a bucket of its own', async () => {
    const [first, second] = [rule('fixed-window', 2, LONG), rule('fixed-window', 2, LONG)];
    expect(passed(await ask(3, first))).toBe(2);
    expect(passed(await ask(3, second))).toBe(2);
  });
});

describe('concurrency', () => {
  test('is a row a running item and is freed with the outcome', async () => {
    const gauge = concurrency(2);
    const requests = items(3, [gauge]);
    const verdicts = await reserve(pg.db, requests, HOLD_S);
    expect(verdicts).toMatchObject([{ ok: true }, { ok: true }, { ok: false, rule: gauge, retryInSeconds: 1 }]);
    expect(await releaseConcurrency(pg.db, requests.slice(0, 1))).toBe(1);
    expect(await releaseConcurrency(pg.db, requests.slice(0, 1))).toBe(0);
    expect(await countConcurrency(pg.db, gauge.bucketId)).toBe(1);
    expect(passed(await ask(2, gauge))).toBe(1);
  });

  test('a release of an older claim frees nothing of a newer one', async () => {
    const gauge = concurrency(1);
    const [request] = items(1, [gauge]);
    await reserve(pg.db, [{ ...request!, claimNo: 2 }], HOLD_S);
    expect(await releaseConcurrency(pg.db, [{ ...request!, claimNo: 1 }])).toBe(0);
    expect(passed(await ask(1, gauge))).toBe(0);
  });

  test('a release in a transaction that rolls back keeps the row', async () => {
    const gauge = concurrency(1);
    const requests = items(1, [gauge]);
    await reserve(pg.db, requests, HOLD_S);
    const failing = pg.db.transaction(async (tx) => {
      expect(await releaseConcurrency(tx, requests)).toBe(1);
      throw new Error('rolled back');
    });
    await expect(failing).rejects.toThrow('rolled back');
    expect(await countConcurrency(pg.db, gauge.bucketId)).toBe(1);
  });

  test('rows past their hold do not count', async () => {
    const gauge = concurrency(1);
    expect(passed(await ask(1, gauge))).toBe(1);
    expect(passed(await ask(1, gauge))).toBe(0);
    await sql('update limit_concurrency set held_until_us = held_until_us - 400000000');
    expect(passed(await ask(1, gauge))).toBe(1);
  });

  test('the purge deletes rows whose item is not running under that claim, and no others', async () => {
    const gauge = concurrency(10);
    const input = uuidv7();
    await sql(
      `insert into batches (id, owner, shape, total_items, open_items, input_id, credential_kind, credential_id)
       values ($1::uuid, 'o', 'openai', 4, 3, $2::uuid, 'key', 'k')`,
      BATCH,
      input,
    );
    await sql(
      `insert into batch_items (batch_id, idx, state, claim_no, worker_id, error, finalized_at, input_offset, input_length, input_crc)
       values ($1::uuid, 0, 'running', 1, $1::uuid, null, null, 0, 1, 0),
         ($1::uuid, 1, 'running', 2, $1::uuid, null, null, 0, 1, 0),
         ($1::uuid, 2, 'available', 1, null, null, null, 0, 1, 0),
         ($1::uuid, 3, 'discarded', 1, null, 'x', clock_timestamp(), 0, 1, 0)`,
      BATCH,
    );
    const requests = [0, 1, 2, 3, 4].map((idx) => ({ batchId: BATCH, idx, claimNo: 1, rules: [gauge] }));
    await reserve(pg.db, requests, HOLD_S);
    expect(await purgeLimits(pg.db)).toEqual({ concurrency: 4, buckets: 0 });
    expect(await sql('select idx, claim_no from limit_concurrency')).toEqual([{ idx: 0, claim_no: 1 }]);
  });
});

describe('token meters', () => {
  test.each(['fixed-window', 'sliding-window'] as const)(
    '%s refuses when at the amount, and not before',
    async (strategy) => {
      const meter = rule(strategy, 100, LONG, 'tokens');
      expect(passed(await ask(50, meter))).toBe(50);
      await charge(pg.db, [{ rules: [meter], tokens: { input: 40, output: 59 } }]);
      expect(passed(await ask(2, meter))).toBe(2);
      await charge(pg.db, [{ rules: [meter], tokens: { cache_read: 1 } }]);
      expect(await ask(1, meter)).toMatchObject([{ ok: false, rule: meter }]);
      await age(meter, 2 * LONG);
      expect(passed(await ask(1, meter))).toBe(1);
    },
  );

  test('the charges of a group commit add up, each meter its own part, into the current window', async () => {
    const [all, output] = [
      rule('fixed-window', 1e15, LONG, 'tokens'),
      rule('sliding-window', 1e15, LONG, 'tokens.output'),
    ];
    const tokens = { input: 10, output: 5, cache_creation_5m: 3, reasoning: 4 };
    await charge(pg.db, Array(3).fill({ rules: [all, output, concurrency(1)], tokens }));
    expect([await usedOf(all), await usedOf(output)]).toEqual([54, 15]);
    await age(all, LONG);
    await charge(pg.db, [{ rules: [all], tokens: { input: 7 } }]);
    expect(await usedOf(all)).toBe(7);
  });

  test('a refund leaves token counts as they are', async () => {
    const meter = rule('fixed-window', 100, LONG, 'tokens');
    const [request] = items(1, [meter]);
    const [verdict] = await reserve(pg.db, [request!], HOLD_S);
    await charge(pg.db, [{ rules: [meter], tokens: { input: 7 } }]);
    await refund(pg.db, [{ ...request!, atUs: (verdict as { atUs: number }).atUs }]);
    expect(await usedOf(meter)).toBe(7);
  });
});

describe('refunds', () => {
  const STRATEGIES = ['token-bucket', 'sliding-window', 'fixed-window', 'leaky-bucket', 'session-window'] as const;

  /** Reserves for `n` items, and returns what a refund of each needs. */
  async function take(n: number, ...rules: BucketRule[]) {
    const requests = items(n, rules);
    const verdicts = await reserve(pg.db, requests, HOLD_S);
    return requests.map((request, i) => ({ ...request, atUs: (verdicts[i] as { atUs: number }).atUs }));
  }

  test.each(STRATEGIES)('%s gives back what no upstream call followed', async (strategy) => {
    const [bucket, gauge] = [rule(strategy, 5, LONG), concurrency(5)];
    const taken = await take(5, bucket, gauge);
    await refund(pg.db, taken.slice(1, 3));
    expect(await countConcurrency(pg.db, gauge.bucketId)).toBe(3);
    expect(passed(await ask(5, bucket, gauge))).toBe(2);
  });

  test.each(STRATEGIES)('%s: a refund after the window moved on gives nothing of the new one', async (strategy) => {
    const bucket = rule(strategy, 5, LONG);
    const [first] = await take(1, bucket);
    await age(bucket, 2 * LONG);
    expect(passed(await ask(5, bucket))).toBe(5);
    await refund(pg.db, [{ ...first!, atUs: first!.atUs - 2 * LONG * 1e6 }]);
    expect(await usedOf(bucket)).toBeCloseTo(5);
    expect(passed(await ask(1, bucket))).toBe(0);
  });

  test('sliding-window takes a late refund from the window before', async () => {
    const bucket = rule('sliding-window', 1000, LONG);
    const taken = await take(10, bucket);
    await age(bucket, LONG);
    await ask(1, bucket);
    await refund(
      pg.db,
      taken.slice(0, 4).map((item) => ({ ...item, atUs: item.atUs - LONG * 1e6 })),
    );
    expect(await sql('select used, previous from limit_buckets')).toEqual([{ used: 1, previous: 6 }]);
  });

  test.each(STRATEGIES)('%s never goes below zero, however often it is refunded', async (strategy) => {
    const bucket = rule(strategy, 5, LONG);
    const [first] = await take(1, bucket);
    await refund(pg.db, Array(7).fill(first));
    expect(await usedOf(bucket)).toBe(0);
    expect(passed(await ask(9, bucket))).toBe(5);
  });

  test('session-window: when every request of a session is refunded, the next one anchors a new session', async () => {
    const bucket = rule('session-window', 1, 1000);
    const taken = await take(1, bucket);
    await age(bucket, 900);
    await refund(pg.db, taken);
    expect(await ask(2, bucket)).toMatchObject([{ ok: true }, { ok: false, retryInSeconds: 1000 }]);
  });
});

test('the purge deletes idle buckets only, and they start afresh', async () => {
  const [idle, busy] = [rule('token-bucket', 5, 1000), rule('token-bucket', 5, 1000)];
  await ask(1, idle);
  await ask(1, busy);
  await sql(
    'update limit_buckets set anchor_us = anchor_us - 2100000000, idle_us = idle_us - 2100000000 where id = $1::uuid',
    idle.bucketId,
  );
  expect(await purgeLimits(pg.db)).toEqual({ concurrency: 0, buckets: 1 });
  expect(await usedOf(busy)).toBe(1);
  expect(passed(await ask(9, idle))).toBe(5);
});
