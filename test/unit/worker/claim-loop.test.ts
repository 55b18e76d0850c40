import { afterEach, expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import type { Log } from '../../../lib/base/log.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import { type ClaimLoop, createClaimLoop } from '../../../lib/worker/claim-loop.ts';
import { createHoldings } from '../../../lib/worker/holdings.ts';
import { beginTenure } from '../../../lib/worker/lease/tenure.ts';
import { PERIODS } from '../../../lib/worker/periods.ts';
import { strictLog } from '../../support/strict-log.ts';

const loops: ClaimLoop[] = [];
afterEach(() => {
  for (const loop of loops.splice(0)) loop.stop();
});

const item = (idx: number) => ({ batch: { id: 'b' } as BatchContext, idx }) as ClaimedItem;
const turn = () => new Promise((resolve) => setImmediate(resolve));
const away = () => Object.assign(new Error('connect ECONNREFUSED'), { code: 'ECONNREFUSED' });

/** A claim loop whose statements the test answers, in a tenure that the test ends. */
function harness() {
  const world = { now: 0, room: 8 };
  const asked: string[] = [];
  const answers: PromiseWithResolvers<{ items: ClaimedItem[]; more?: boolean }>[] = [];
  const logged: string[] = [];
  const strict = strictLog();
  const log = {
    warn: (_: unknown, text: string) => void logged.push(`warn ${text}`),
    error(fields: unknown, text: string) {
      logged.push(`error ${text}`);
      strict.error(fields, text);
    },
  };
  const ask = (what: string) => {
    asked.push(what);
    const answer = Promise.withResolvers<{ items: ClaimedItem[]; more?: boolean }>();
    answers.push(answer);
    return answer.promise;
  };
  const holdings = createHoldings();
  const loop = createClaimLoop({
    clock: { ...systemClock, monotonic: () => world.now },
    log: log as unknown as Log,
    periods: PERIODS,
    claimer: {
      claim: async ({ workerId }) => ({ more: false, nextDueMs: null, ...(await ask(`claim ${workerId}`)) }),
      releaseUnheld: async ({ workerId }) => void (await ask(`release ${workerId}`)),
      passedOver: () => [],
    },
    holdings,
    room: () => world.room,
    take() {},
    onPause() {},
  });
  loops.push(loop);
  const begin = (workerId: string) => {
    const { tenure, end } = beginTenure(workerId);
    holdings.begin(tenure);
    return () => {
      end();
      holdings.clear();
      loop.forget();
    };
  };
  const end = begin('one');
  /** Answers the last statement, and lets the loop continue. */
  const answer = async (given: Error | { items: ClaimedItem[]; more?: boolean } = { items: [] }) => {
    if (given instanceof Error) answers.at(-1)!.reject(given);
    else answers.at(-1)!.resolve(given);
    await turn();
  };
  return { loop, world, asked, logged, holdings, begin, end, answer };
}

test('claims while there is more and room, and then rests', async () => {
  const { loop, world, asked, holdings, answer } = harness();
  loop.wake();
  expect(loop.claiming()).toBe(true);
  await answer({ items: [item(0)], more: true });
  await answer({ items: [item(1)] });
  expect([asked, loop.claiming(), loop.unsure()]).toEqual([['claim one', 'claim one'], false, false]);
  expect([...holdings.byBatch().get('b')!]).toEqual([0, 1]);
  world.room = 0;
  loop.wake();
  expect(asked).toHaveLength(2);
});

test('makes one statement at a time, and asks again for news that came meanwhile', async () => {
  const { loop, asked, answer } = harness();
  loop.wake();
  loop.wake();
  loop.refill();
  expect(asked).toHaveLength(1);
  await answer();
  expect(asked).toHaveLength(2);
  await answer();
  expect(asked).toHaveLength(2);
});

test('after a failed claim, releases what it may have taken before it claims again', async () => {
  const { loop, asked, answer } = harness();
  loop.wake();
  await answer(away());
  expect([loop.claiming(), loop.unsure()]).toEqual([false, true]);
  loop.wake();
  expect([loop.claiming(), loop.unsure()]).toEqual([true, true]);
  await answer();
  expect(loop.unsure()).toBe(false);
  await answer();
  expect(asked).toEqual(['claim one', 'release one', 'claim one']);
  expect([loop.claiming(), loop.unsure()]).toEqual([false, false]);
});

test('stays unsure when the release fails too, and while there is no room', async () => {
  const { loop, world, asked, answer } = harness();
  loop.wake();
  await answer(away());
  loop.wake();
  await answer(away());
  expect(loop.unsure()).toBe(true);
  world.room = 0;
  loop.wake();
  expect([asked, loop.unsure()]).toEqual([['claim one', 'release one'], true]);
});

test('looks again with each heartbeat for a while, because a claim that was given up may still be carried out', async () => {
  const { loop, world, asked, answer } = harness();
  loop.doubt();
  expect(asked).toEqual([]); // no claim has failed
  loop.wake();
  await answer(away());
  loop.wake();
  await answer();
  await answer();
  world.now = 120_000;
  loop.doubt();
  expect([asked.at(-1), loop.unsure()]).toEqual(['release one', true]);
  await answer();
  await answer();
  world.now = 120_001;
  loop.doubt();
  expect([asked.length, loop.claiming(), loop.unsure()]).toEqual([5, false, false]);
});

test('a heartbeat that comes during a claim is remembered until that returns', async () => {
  const { loop, asked, answer } = harness();
  loop.wake();
  await answer(away());
  loop.wake();
  await answer();
  loop.doubt();
  expect([asked.at(-1), loop.unsure()]).toEqual(['claim one', true]);
  await answer();
  expect(asked.at(-1)).toBe('release one');
  await answer();
  await answer();
  expect([asked.length, loop.claiming(), loop.unsure()]).toEqual([5, false, false]);
});

test('the end of the tenure makes it rest, in whatever mode it is', async () => {
  for (const before of ['claiming', 'unsure', 'recovering']) {
    for (const result of [{ items: [item(0)] }, away()]) {
      const { loop, world, asked, holdings, begin, end, answer } = harness();
      loop.wake();
      if (before !== 'claiming') await answer(away());
      if (before === 'recovering') loop.wake();
      end();
      expect(loop.claiming()).toBe(before !== 'unsure');
      world.room = 0; // nothing is claimed without a lease
      if (before !== 'unsure') await answer(result);
      expect([loop.claiming(), loop.unsure()], before).toEqual([false, false]);
      expect(holdings.batchIds()).toEqual([]);
      begin('two');
      world.room = 8;
      loop.wake();
      expect(asked.at(-1)).toBe('claim two');
      await answer();
      expect(loop.claiming()).toBe(false);
    }
  }
});

test('says once that the database is away, and once that something else is wrong', async () => {
  const { loop, logged, answer } = harness();
  const fail = async (error: Error) => {
    loop.wake();
    await answer(error);
  };
  await fail(away());
  await fail(away());
  expect(logged).toEqual(['warn claim failed']);
  await fail(new TypeError('of our own'));
  await fail(new TypeError('of our own'));
  expect(logged).toEqual(['warn claim failed', 'error claim failed']);
  loop.wake();
  await answer();
  await answer();
  await fail(new TypeError('of our own'));
  expect(logged).toEqual(['warn claim failed', 'error claim failed', 'error claim failed']);
});
