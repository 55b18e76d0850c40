import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import type { Db } from '../../../lib/db/database.ts';
import { createSuccesses } from '../../../lib/usage/successes.ts';
import { createTestDatabase, type TestDatabase } from '../../support/postgres.ts';
import { type EventFixture, insertEvents } from '../../support/usage-events.ts';

// Whether others of a model succeed, as failed rounds ask ("How items of the SDK surfaces run" in
// docs/spec/openai-surface.md).

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.close());
beforeEach(() => database.sql('delete from usage_events'));

const batchId = uuidv7(Date.now());
let idx = 0;
const event = (model: string, ageMs: number, more: Partial<EventFixture> = {}): EventFixture => ({
  batchId,
  idx: idx++,
  ts: new Date(Date.now() - ageMs),
  route: { model },
  ...more,
});

/** Counts its reads; `cut` lets them fail. */
function watched() {
  const seen = { reads: 0, cut: false };
  const db: Db = {
    query: (statement) => {
      seen.reads++;
      return seen.cut ? Promise.reject(new Error('Connection terminated unexpectedly')) : database.db.query(statement);
    },
  };
  return { db, seen };
}

test('finds a success of the model within the time, of any owner, and no failure', async () => {
  await insertEvents(database.db, [
    event('a', 60_000),
    event('b', 1_000, { errorKind: 'upstream_error', status: 500 }),
    event('c', 1_000),
  ]);
  const fresh = () => createSuccesses(database.db, performance.now.bind(performance));
  expect(await fresh().within('a', 90_000)).toBe(true);
  expect(await fresh().within('a', 30_000)).toBe(false);
  expect(await fresh().within('b', 90_000)).toBe(false);
  expect(await fresh().within('unheard of', 90_000)).toBe(false);
});

test('many items that ask at once read once, and a success that is known is not read again', async () => {
  let now = 1_000_000;
  const { db, seen } = watched();
  const successes = createSuccesses(db, () => now);
  const ask = () => Promise.all(Array.from({ length: 50 }, () => successes.within('a', 60_000)));
  expect(new Set(await ask())).toEqual(new Set([false]));
  expect(seen.reads).toBe(1);
  await insertEvents(database.db, [event('a', 100)]);
  now += 4_999;
  expect(new Set(await ask())).toEqual(new Set([false]));
  expect(seen.reads).toBe(1);
  now += 1;
  expect(new Set(await ask())).toEqual(new Set([true]));
  now += 30_000;
  expect(new Set(await ask())).toEqual(new Set([true]));
  expect(seen.reads).toBe(2);
});

test('a read that failed is told, and made again', async () => {
  const { db, seen } = watched();
  const successes = createSuccesses(db, performance.now.bind(performance));
  await insertEvents(database.db, [event('a', 100)]);
  seen.cut = true;
  await expect(successes.within('a', 60_000)).rejects.toThrow('Connection');
  seen.cut = false;
  expect(await successes.within('a', 60_000)).toBe(true);
});
