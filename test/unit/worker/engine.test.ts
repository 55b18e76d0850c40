import { expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import { createEngine, type Engine } from '../../../lib/worker/engine.ts';
import { createHoldings } from '../../../lib/worker/holdings.ts';
import { type Outcome, refused, released } from '../../../lib/worker/item/outcome.ts';
import { beginTenure } from '../../../lib/worker/lease/tenure.ts';
import { PERIODS } from '../../../lib/worker/periods.ts';
import type { Waiting } from '../../../lib/worker/slot-queue.ts';
import { strictLog } from '../../support/strict-log.ts';

type Final = Extract<Outcome, { kind: 'final' }>;

function item(batchId: string, idx: number, more: Partial<ClaimedItem> & { owner?: string } = {}): ClaimedItem {
  const { owner = 'ann', ...rest } = more;
  return {
    batch: { id: batchId, owner } as BatchContext,
    idx,
    claimNo: 1,
    inputOffset: 0,
    inputLength: 2,
    inputCrc: 0,
    attempts: 0,
    rounds: 0,
    waitedMs: 0,
    loadFailures: 0,
    failedKey: null,
    failedRounds: 0,
    failingForMs: null,
    ...rest,
  };
}

/** An engine over claims, runs and records that the test answers itself. */
function harness(concurrency = 1) {
  const claimedIn: string[] = [];
  const claims: ((items: ClaimedItem[] | Error) => void)[] = [];
  const runs: { item: ClaimedItem; signal: AbortSignal; end(outcome: Outcome | Error): void }[] = [];
  const finals: { item: ClaimedItem; outcome: Final }[] = [];
  const givenBack: { item: ClaimedItem; outcome: Outcome }[] = [];
  const abandoned: ClaimedItem[] = [];
  const lease = { claims: true, stands: true };
  const holdings = createHoldings();
  const engine: Engine = createEngine<Waiting>({
    clock: systemClock,
    log: strictLog(),
    concurrency,
    periods: PERIODS,
    mayClaim: () => lease.claims,
    mayRun: () => lease.stands,
    neverTwice: false,
    holdings,
    claimer: {
      claim: (tenure) =>
        new Promise((resolve, reject) => {
          claimedIn.push(tenure.workerId);
          claims.push((items) =>
            items instanceof Error ? reject(items) : resolve({ items, more: false, nextDueMs: null }),
          );
        }),
      releaseUnheld: async () => {},
      passedOver: () => [],
    },
    load: async (items) => items.map((one) => ({ item: one, body: Buffer.from('{}') })),
    runner: {
      prepare: async (loaded) => loaded.map(({ item: one }) => ({ ready: { item: one, body: Buffer.from('{}') } })),
      run: ({ item: one }, signal) =>
        new Promise((resolve, reject) =>
          runs.push({ item: one, signal, end: (o) => (o instanceof Error ? reject(o) : resolve(o)) }),
        ),
      abandon: (entries) => abandoned.push(...entries.map((entry) => entry.item)),
      forget: () => {},
    },
    commits: {
      add: (_, one) => void finals.push(one),
      full: () => false,
      flush: async () => engine.settled(finals),
      size: () => 0,
    },
    releases: {
      add: (_, one, outcome) => void givenBack.push({ item: one, outcome }),
      full: () => false,
      flush: async () => engine.letGo(givenBack.map((one) => one.item)),
    },
  });
  const begin = (workerId: string) => {
    const { tenure, end } = beginTenure(workerId);
    engine.begin(tenure);
    return end;
  };
  let end = begin('first');
  const loseLease = () => {
    end();
    end = begin('second');
  };
  return { engine, holdings, claims, claimedIn, runs, finals, givenBack, abandoned, lease, loseLease };
}

/** Lets all ready work continue. */
const turn = () => new Promise((resolve) => setImmediate(() => setImmediate(resolve)));

test('a stop waits for the claim under way and gives its items back before it says that nothing is held', async () => {
  const { engine, holdings, claims, givenBack, runs } = harness();
  engine.wake();
  const stopped = engine.stop(1000);
  let over = false;
  void stopped.then(() => (over = true));
  await turn();
  expect(over).toBe(false);
  claims[0]!([item('b', 0), item('b', 1)]);
  expect(await stopped).toBe(true);
  expect(givenBack.map((one) => one.item.idx)).toEqual([0, 1]);
  expect(runs).toEqual([]);
  expect(holdings.batchIds()).toEqual([]);
});

test('a stop after a claim without an answer says that something may be left', async () => {
  const { engine, claims } = harness();
  engine.wake();
  claims[0]!(new Error('connection lost'));
  await turn();
  expect(await engine.stop(0)).toBe(false);
});

test('a stop gives waiting items back at once, and running ones after the deadline, in the order of their fates', async () => {
  const { engine, claims, runs, givenBack, finals } = harness(2);
  engine.wake();
  claims[0]!([item('b', 0), item('b', 1), item('b', 2)]);
  await turn();
  const stopped = engine.stop(1);
  expect(givenBack.map((one) => one.item.idx)).toEqual([2]);
  await new Promise<void>((resolve) => runs[0]!.signal.addEventListener('abort', () => resolve()));
  runs[0]!.end(released(runs[0]!.item, 0, { attempts: 1 }));
  runs[1]!.end(refused(runs[1]!.item, 'upstream_error', 'upstream status 400'));
  expect(await stopped).toBe(true);
  expect(givenBack.map((one) => one.item.idx)).toEqual([2, 0]);
  expect(finals.map((one) => one.item.idx)).toEqual([1]);
});

test('no item starts once the lease is too old, and those that wait are given back', async () => {
  const { engine, claims, runs, givenBack, abandoned, lease } = harness();
  engine.wake();
  claims[0]!([item('b', 0), item('b', 1)]);
  await turn();
  lease.stands = lease.claims = false;
  engine.abortAll();
  expect(runs[0]!.signal.aborted).toBe(true);
  runs[0]!.end(released(runs[0]!.item, 0));
  await turn();
  expect(runs).toHaveLength(1);
  expect(givenBack.map((one) => one.item.idx)).toEqual([0, 1]);
  expect(abandoned.map((one) => one.idx)).toEqual([1]);
});

test('a lost lease forgets what runs: it counts against its owner no more', async () => {
  const { engine, holdings, claims, runs, loseLease } = harness();
  engine.wake();
  claims[0]!([item('a', 0, { owner: 'ann' }), item('a', 1, { owner: 'ann' })]);
  await turn();
  loseLease();
  expect(runs[0]!.signal.aborted).toBe(true);
  expect([engine.running(), engine.waiting(), holdings.batchIds()]).toEqual([0, 0, []]);
  engine.wake();
  // Equal otherwise, so the older claim goes first; a count that was left behind would let bob pass.
  claims[1]!([item('c', 0, { owner: 'ann' }), item('d', 0, { owner: 'bob' })]);
  await turn();
  expect(runs.map((run) => run.item.batch.id)).toEqual(['a', 'c']);
  runs[0]!.end(released(runs[0]!.item, 0));
  await turn();
  expect(engine.running()).toBe(1);
});

test('a claim that was under way when the lease was lost brings nothing into the next tenure', async () => {
  const { engine, holdings, claims, claimedIn, runs, loseLease } = harness();
  engine.wake();
  loseLease();
  claims[0]!([item('b', 0)]);
  await turn();
  expect([runs.length, holdings.batchIds(), claimedIn]).toEqual([0, [], ['first', 'second']]);
  claims[1]!([item('b', 0, { claimNo: 2 })]);
  await turn();
  expect(runs.map((run) => run.item.claimNo)).toEqual([2]);
});

test('a claim without an answer is of no concern to the next tenure', async () => {
  const { engine, claims, loseLease } = harness();
  engine.wake();
  loseLease();
  claims[0]!(new Error('connection lost'));
  await turn();
  expect(await engine.stop(0)).toBe(true);
});

test('a cancel ends waiting items at once and running ones when they let go; a complete answer wins', async () => {
  const { engine, claims, runs, finals } = harness(3);
  engine.wake();
  claims[0]!([item('b', 0), item('b', 1), item('b', 2), item('other', 0)]);
  await turn();
  const [first, other, second] = runs;
  expect(runs.map((run) => run.item.batch.id)).toEqual(['b', 'other', 'b']);
  engine.cancelBatch('b');
  expect(finals.map((one) => [one.item.idx, one.outcome.state])).toEqual([[2, 'cancelled']]);
  expect(runs.map((run) => run.signal.aborted)).toEqual([true, false, true]);
  const done = refused(first!.item, 'upstream_error', 'upstream status 400');
  first!.end(done);
  second!.end(released(second!.item, 0, { attempts: 2 }));
  other!.end(released(other!.item, 0));
  await turn();
  expect(finals).toHaveLength(3);
  expect(finals[1]!.outcome).toBe(done);
  expect(finals[2]!.outcome).toMatchObject({ state: 'cancelled', error: null, usage: { attempts: 2 } });
});

test('items are started a few at a time, with the event loop going round between, however many slots are free', async () => {
  const { engine, claims, runs } = harness(100);
  const round = () => new Promise((resolve) => setImmediate(resolve));
  engine.wake();
  claims[0]!(Array.from({ length: 200 }, (_, idx) => item('b', idx)));
  const most = [];
  for (let before = 0; runs.length < 100; before = runs.length) {
    await round();
    most.push(runs.length - before);
  }
  expect(Math.max(...most)).toBeLessThanOrEqual(32);
  // All answers together start no more at once.
  for (const run of [...runs]) run.end(released(run.item, 0));
  await round();
  expect(runs.length).toBeLessThanOrEqual(132);
  while (runs.length < 200) await round();
  expect(engine.running()).toBe(100);
});

test('a run that fails by a fault of our own is tried again, and ends as internal', async () => {
  for (const [loadFailures, ends] of [
    [0, false],
    [1, false],
    [2, true],
  ] as const) {
    const { engine, claims, runs, finals, givenBack } = harness();
    engine.wake();
    claims[0]!([item('b', 0, { loadFailures })]);
    await turn();
    runs[0]!.end(new TypeError('of our own'));
    await turn();
    if (ends) {
      expect(finals[0]!.outcome).toMatchObject({ state: 'discarded', error: 'batch item: internal' });
      expect(finals[0]!.outcome.usage).toMatchObject({ errorKind: 'internal', errorMessage: 'internal' });
    } else expect(givenBack[0]!.outcome).toMatchObject({ kind: 'released', loadFailed: true });
  }
});
