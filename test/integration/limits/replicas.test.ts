import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createLog } from '../../../lib/base/log.ts';
import { createDb, type Database } from '../../../lib/db/database.ts';
import { purgeLimits } from '../../../lib/limits/purge.ts';
import { reserve } from '../../../lib/limits/reserve.ts';
import type { BucketRule } from '../../../lib/limits/rules.ts';
import { charge, refund, releaseConcurrency } from '../../../lib/limits/settle.ts';
import type { Meter, Strategy } from '../../../lib/model/catalog.ts';
import { countConcurrency } from '../../support/limits-reference.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

// Aligned to 2001 and 2033: no test stands on a boundary.
const LONG = 1_000_000_000;
const CONCURRENCY = 64;
const STRATEGIES = ['token-bucket', 'sliding-window', 'fixed-window', 'leaky-bucket', 'session-window'] as const;

let primary: TestDatabase;
let replicas: [Database, Database];
beforeAll(async () => {
  primary = await createTestDatabase();
  const second = { dsn: primary.dsn, max: 8, prepared: true, applicationName: 'second', log: createLog('silent') };
  replicas = [primary.db, createDb(second)];
});
afterAll(async () => {
  await replicas[1].close();
  await primary.close();
});

const rule = (strategy: Strategy, amount: number, window: number, meter: Meter = 'requests'): BucketRule => ({
  bucketId: uuidv7(),
  scope: 'policy',
  name: 'default',
  meter,
  amount,
  window,
  strategy,
});
const BATCH = uuidv7();
let nextIdx = 0;
const requests = (n: number, rules: readonly BucketRule[]) =>
  Array.from({ length: n }, () => ({ batchId: BATCH, idx: nextIdx++, claimNo: 1, rules }));

/** Runs `work` on both replicas, `CONCURRENCY` loops each, until it says that it is done. */
async function onBoth(work: (db: Database, loop: number) => Promise<boolean>): Promise<void> {
  const loops = replicas.flatMap((db, replica) =>
    Array.from({ length: CONCURRENCY }, async (_, i) => {
      while (!(await work(db, replica * CONCURRENCY + i)));
    }),
  );
  await Promise.all(loops);
}

describe('two replicas at concurrency 64', () => {
  test.each(STRATEGIES)('%s never passes more than the amount in a window, and all of it', async (strategy) => {
    const rules = [rule(strategy, 500, LONG)];
    let passed = 0;
    await onBoth(async (db, loop) => {
      const verdicts = await reserve(db, requests(1 + (loop % 5), rules), 400);
      passed += verdicts.filter((verdict) => verdict.ok).length;
      return verdicts.some((verdict) => !verdict.ok);
    });
    expect(passed).toBe(500);
  });

  test('a token-bucket that refills passes no more than the amount and the refill of the time it took', async () => {
    const rules = [rule('token-bucket', 100, 1)];
    const times: number[] = [];
    let rounds = 0;
    await onBoth(async (db) => {
      for (const verdict of await reserve(db, requests(3, rules), 400)) if (verdict.ok) times.push(verdict.atUs);
      return ++rounds > 1000;
    });
    const seconds = (Math.max(...times) - Math.min(...times)) / 1e6;
    expect(times.length).toBeGreaterThanOrEqual(100);
    expect(times.length).toBeLessThanOrEqual(100 + Math.ceil(seconds * 100));
  });

  test('concurrency never exceeds its amount and leaks nothing', async () => {
    const gauge = rule('token-bucket', 20, 0, 'concurrency');
    let held = 0;
    let highest = 0;
    let passed = 0;
    await onBoth(async (db, loop) => {
      const asked = requests(1 + (loop % 3), [gauge]);
      const verdicts = await reserve(db, asked, 400);
      const running = asked.filter((_, i) => verdicts[i]?.ok);
      held += running.length;
      passed += running.length;
      highest = Math.max(highest, held);
      highest = Math.max(highest, await countConcurrency(db, gauge.bucketId));
      // Counted down before the rows go: the count here is never above the truth.
      held -= running.length;
      await releaseConcurrency(db, running);
      return passed > 400;
    });
    expect(highest).toBeLessThanOrEqual(20);
    expect(await countConcurrency(primary.db, gauge.bucketId)).toBe(0);
  });

  test('overlapping buckets in any order, refunds, charges and purges at once come to the exact counts', async () => {
    const buckets = STRATEGIES.map((strategy) => rule(strategy, 1e4, LONG));
    const tokens = rule('fixed-window', 1e9, LONG, 'tokens');
    let counted = 0;
    let charged = 0;
    let rounds = 0;
    await onBoth(async (db, loop) => {
      const turn = loop % buckets.length;
      const rules = [tokens, ...buckets.slice(turn), ...buckets.slice(0, turn)];
      const asked = requests(3, loop % 2 ? rules : rules.toReversed());
      const verdicts = await reserve(db, asked, 400);
      const [first] = verdicts;
      counted += 2;
      charged += 5;
      await Promise.all([
        refund(db, [{ ...asked[0]!, atUs: first?.ok ? first.atUs : 0 }]),
        charge(db, [{ rules, tokens: { input: 5 } }]),
        loop % 16 === 0 ? purgeLimits(db) : undefined,
      ]);
      return ++rounds > 400;
    });
    const statement = { name: 'test_used', text: 'select id, used from limit_buckets', values: [] };
    const used = new Map(
      (await primary.db.query<{ id: string; used: number }>(statement)).rows.map((r) => [r.id, r.used]),
    );
    for (const bucket of buckets) expect(used.get(bucket.bucketId)).toBeCloseTo(counted, 2);
    expect(used.get(tokens.bucketId)).toBe(charged);
  });
});

describe('a backend that is killed', () => {
  test('in mid-transaction leaves no count, no concurrency row and no lock', async () => {
    const [bucket, gauge] = [rule('fixed-window', 3, LONG), rule('token-bucket', 3, 0, 'concurrency')];
    const rules = [bucket, gauge];
    // The earlier counts stay.
    expect(await reserve(primary.db, requests(1, rules), 400)).toMatchObject([{ ok: true }]);

    let waiting: ReturnType<typeof reserve> | undefined;
    const killed = replicas[1].transaction(async (tx) => {
      // Production code cannot pass a transaction here; this is the only way to stop a reservation half way.
      expect(await reserve(tx as Database, requests(2, rules), 400)).toMatchObject([{ ok: true }, { ok: true }]);
      waiting = reserve(primary.db, requests(3, rules), 400);
      const text = 'select pg_terminate_backend(pg_backend_pid())';
      await tx.query({ name: 'test_terminate', text, values: [] });
    });
    await expect(killed).rejects.toThrow('terminating connection');
    expect((await waiting)?.map((verdict) => verdict.ok)).toEqual([true, true, false]);
    expect(await countConcurrency(primary.db, gauge.bucketId)).toBe(3);
  });
});
