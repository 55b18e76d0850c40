import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { RoutePlan } from '../../../lib/routing/plan.ts';
import { caller, keysOf, outcome, planOver, type Replica, replicaOn } from '../../support/keypool.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());

const repeat = (plan: RoutePlan, count: number): RoutePlan[] => new Array(count).fill(plan);

/** The first key that each item of one claim would try. */
async function claim(replica: Replica, plans: readonly RoutePlan[]): Promise<string[]> {
  const turns = await replica.pool.drawTurns(plans);
  return plans.map((plan, i) => replica.pool.order(plan.candidates[0]!, plan, turns[i]!, 'ann')[0]!.name);
}

function counts(names: readonly string[]): Record<string, number> {
  const result: Record<string, number> = {};
  for (const name of names) result[name] = (result[name] ?? 0) + 1;
  return result;
}

describe('prioritized', () => {
  test('takes the first healthy key in list order, and asks Postgres nothing', async () => {
    const replica = replicaOn(database.db);
    const plan = planOver(['z', 'y', 'x'], 'prioritized', 'prio');
    expect(await claim(replica, repeat(plan, 3))).toEqual(['z', 'z', 'z']);
    expect(replica.statements).toEqual([]);
    replica.pool.report(
      keysOf(plan)[0]!,
      'gpt-4o',
      caller(),
      outcome('rate_limit_long', { retryAfterMs: 600_000 }),
      null,
    );
    expect(await claim(replica, [plan])).toEqual(['y']);
    await replica.pool.flush();
    await replica.pool.reset(keysOf(plan)[0]!);
  });
});

describe('round-robin', () => {
  test('is even over two replicas that claim at once', async () => {
    const plan = planOver(['a', 'b', 'c'], 'round-robin', 'even');
    const replicas = [replicaOn(database.db), replicaOn(database.db)];
    const sizes = [1, 7, 64, 2, 5, 11, 3, 27];
    const claims = sizes.flatMap((size) => replicas.map((replica) => claim(replica, repeat(plan, size))));
    const drawn = (await Promise.all(claims)).flat();
    expect(counts(drawn)).toEqual({ a: 80, b: 80, c: 80 });
    expect(replicas[0]!.statements).toEqual(sizes.map(() => 'draw_turns'));
  });

  test('goes over the healthy keys only', async () => {
    const replica = replicaOn(database.db);
    const plan = planOver(['a', 'b', 'c'], 'round-robin', 'healthy');
    replica.pool.report(
      keysOf(plan)[1]!,
      'gpt-4o',
      caller(),
      outcome('rate_limit_long', { retryAfterMs: 600_000 }),
      null,
    );
    expect(counts(await claim(replica, repeat(plan, 10)))).toEqual({ a: 5, c: 5 });
    await replica.pool.flush();
    await replica.pool.reset(keysOf(plan)[1]!);
  });

  test('lists whose items alternate are each even', async () => {
    const replica = replicaOn(database.db);
    const [one, two] = [planOver(['a', 'b'], 'round-robin', 'mix'), planOver(['c', 'd'], 'round-robin', 'mix')];
    const drawn = await claim(replica, [one, two, one, two, one, two, one, two]);
    expect(counts(drawn)).toEqual({ a: 2, b: 2, c: 2, d: 2 });
    expect(replica.statements).toEqual(['draw_turns']);
  });

  test('policies have counters of their own', async () => {
    const replica = replicaOn(database.db);
    const [one, two] = [planOver(['a', 'b'], 'round-robin', 'p1'), planOver(['a', 'b'], 'round-robin', 'p2')];
    expect(await claim(replica, [one])).toEqual(['a']);
    expect(await claim(replica, [two])).toEqual(['a']);
    expect(await claim(replica, [one, two])).toEqual(['b', 'b']);
  });

  test('still draws when Postgres does not answer', async () => {
    const replica = replicaOn(database.db);
    replica.link.cut = true;
    const plan = planOver(['a', 'b'], 'round-robin', 'cut');
    expect(counts(await claim(replica, repeat(plan, 4)))).toEqual({ a: 2, b: 2 });
  });
});

describe('least-recently-used', () => {
  test('takes never used keys first, in list order, then the oldest', async () => {
    const replica = replicaOn(database.db);
    const two = planOver(['b', 'a'], 'least-recently-used', 'lru');
    expect(await claim(replica, [two])).toEqual(['b']);
    expect(await claim(replica, [two])).toEqual(['a']);
    const three = planOver(['b', 'a', 'new'], 'least-recently-used', 'lru');
    expect(await claim(replica, repeat(three, 5))).toEqual(['new', 'b', 'a', 'new', 'b']);
    expect(await claim(replica, repeat(three, 2))).toEqual(['a', 'new']);
    expect(replica.statements).toHaveLength(4);
  });

  test('a key that comes back after a pause is the oldest', async () => {
    const replica = replicaOn(database.db);
    const plan = planOver(['a', 'b', 'c'], 'least-recently-used', 'pause');
    await claim(replica, repeat(plan, 3));
    replica.pool.report(
      keysOf(plan)[0]!,
      'gpt-4o',
      caller(),
      outcome('rate_limit_long', { retryAfterMs: 600_000 }),
      null,
    );
    expect(await claim(replica, repeat(plan, 4))).toEqual(['b', 'c', 'b', 'c']);
    await replica.pool.flush();
    await replica.pool.reset(keysOf(plan)[0]!);
    expect(await claim(replica, [plan])).toEqual(['a']);
  });

  test('is even over two replicas that claim at once', async () => {
    const plan = planOver(['a', 'b', 'c'], 'least-recently-used', 'lru-even');
    const replicas = [replicaOn(database.db), replicaOn(database.db)];
    await claim(replicas[0]!, repeat(plan, 3));
    const claims = Array.from({ length: 30 }, (_, i) => claim(replicas[i % 2]!, [plan]));
    expect(counts((await Promise.all(claims)).flat())).toEqual({ a: 10, b: 10, c: 10 });
  });

  test('policies have stamps of their own', async () => {
    const replica = replicaOn(database.db);
    const plans = ['q1', 'q2'].map((policy) => planOver(['a', 'b'], 'least-recently-used', policy));
    expect(await claim(replica, plans)).toEqual(['a', 'a']);
  });
});
