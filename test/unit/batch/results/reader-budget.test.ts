import fc from 'fast-check';
import { expect, test } from 'vitest';
import { createReaderBudget, type StreamShare } from '../../../../lib/batch/results/reader-budget.ts';

const MIB = 1024 * 1024;

/** A stream whose share is kept until its end is called. */
function openStream(budget: ReturnType<typeof createReaderBudget>, owner: string) {
  let share: StreamShare | undefined;
  const stream = budget.stream(owner, async function* (given) {
    share = given;
    for (;;) yield Buffer.alloc(1);
  });
  return { begin: () => stream.next(), end: () => stream.return(undefined), load: () => share!.loadBytes() };
}

test('counts the streams of an owner from their first byte to their end', async () => {
  const budget = createReaderBudget({ capBytes: MIB, maxStreams: 2 });
  const [one, two, three, other] = ['ann', 'ann', 'ann', 'bob'].map((owner) => openStream(budget, owner));
  await one!.begin();
  await two!.begin();
  await expect(three!.begin()).rejects.toMatchObject({ code: 'too_many_streams', headers: { 'retry-after': '1' } });
  await other!.begin();
  await one!.end();
  await openStream(budget, 'ann').begin();
});

test('frees the share of a stream that fails, and needs nothing for one that never begins', async () => {
  const budget = createReaderBudget({ capBytes: MIB, maxStreams: 1 });
  await openStream(budget, 'ann').end();
  const failing = budget.stream('ann', async function* (share) {
    share.loadBytes();
    yield Buffer.alloc(1);
    throw new Error('no');
  });
  await failing.next();
  expect(budget.held()).toBeGreaterThan(0);
  await expect(failing.next()).rejects.toThrow('no');
  expect(budget.held()).toBe(0);
  await openStream(budget, 'ann').begin();
});

test('gives many streams smaller loads, and leaves something for the next one', async () => {
  const cap = 256 * MIB;
  await fc.assert(
    fc.asyncProperty(fc.array(fc.nat(199), { minLength: 1, maxLength: 300 }), async (order) => {
      const budget = createReaderBudget({ capBytes: cap, maxStreams: 1000 });
      const streams = Array.from({ length: 200 }, () => openStream(budget, 'ann'));
      for (const one of streams) await one.begin();
      for (const i of order) {
        const bytes = streams[i]!.load();
        expect(bytes).toBeGreaterThanOrEqual(64 * 1024);
        expect(bytes).toBeLessThanOrEqual(4 * MIB);
        expect(budget.held()).toBeLessThanOrEqual(cap + 200 * 4 * 64 * 1024);
      }
      for (const one of streams) await one.end();
      expect(budget.held()).toBe(0);
    }),
    { numRuns: 30 },
  );
});
