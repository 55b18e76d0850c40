import { expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import { createHoldings } from '../../../lib/worker/holdings.ts';
import { type Outcome, refused, released } from '../../../lib/worker/item/outcome.ts';
import type { Waiting } from '../../../lib/worker/slot-queue.ts';
import { createSlots, type Slots } from '../../../lib/worker/slots.ts';
import { strictLog } from '../../support/strict-log.ts';

const item = { batch: { id: 'b', owner: 'ann' } as BatchContext, idx: 0, attempts: 0, loadFailures: 0 } as ClaimedItem;
const turn = () => new Promise((resolve) => setImmediate(resolve));

/** One slot in which one item runs until the test ends it. */
function harness(neverTwice = false) {
  const recorded: Outcome[] = [];
  const forgotten: Outcome[] = [];
  const run = Promise.withResolvers<Outcome>();
  let signal: AbortSignal | undefined;
  const slots: Slots<Waiting> = createSlots<Waiting>({
    clock: systemClock,
    log: strictLog(),
    concurrency: 1,
    neverTwice,
    holdings: createHoldings(),
    runner: {
      run(_, given) {
        signal = given;
        return run.promise;
      },
      abandon() {},
      forget: (outcome) => void forgotten.push(outcome),
    },
    mayStart: () => true,
    record: (_, outcome) => void recorded.push(outcome),
    onFree() {},
  });
  slots.add({ item, body: Buffer.from('{}') });
  slots.fill();
  const end = async (outcome: Outcome) => {
    run.resolve(outcome);
    await turn();
  };
  return { slots, recorded, forgotten, end, aborted: () => signal?.aborted };
}

/** The outcome of an aborted call with one attempt. */
const letGo = released(item, 0, { attempts: 1 });
const answer = refused(item, 'upstream_error', 'upstream status 400');

type Step = (slots: Slots<Waiting>) => void;
const cancel: Step = (slots) => slots.cancel('b');
const stop: Step = (slots) => slots.stop();
const lose: Step = (slots) => slots.drop();

test.each<[name: string, steps: Step[], becomes: Partial<Outcome>]>([
  ['runs on', [], letGo],
  ['is cancelled', [cancel], { kind: 'final', state: 'cancelled' }],
  ['is stopped', [stop], letGo],
  ['is cancelled and then stopped', [cancel, stop], { kind: 'final', state: 'cancelled' }],
  ['is stopped and then cancelled', [stop, cancel], letGo],
  ['is stopped twice', [stop, stop], letGo],
  ['is cancelled twice', [cancel, cancel], { kind: 'final', state: 'cancelled' }],
])('an item that %s and lets go becomes what its first abort says', async (_, steps, becomes) => {
  const { slots, recorded, forgotten, end, aborted } = harness();
  for (const step of steps) step(slots);
  expect(aborted()).toBe(steps.length > 0);
  expect([recorded, slots.running()]).toEqual([[], 1]);
  await end(letGo);
  expect(recorded).toEqual([expect.objectContaining(becomes)]);
  expect([forgotten, slots.running()]).toEqual([[], 0]);
});

test.each<[name: string, steps: Step[]]>([
  ['runs', [lose]],
  ['is cancelled', [cancel, lose]],
  ['is stopped', [stop, lose]],
])('the outcome of an item that %s when its tenure ends is forgotten', async (_, steps) => {
  const { slots, recorded, forgotten, end, aborted } = harness();
  for (const step of steps) step(slots);
  expect([aborted(), slots.running()]).toEqual([true, 0]);
  cancel(slots);
  stop(slots);
  await end(answer);
  expect([recorded, forgotten]).toEqual([[], [answer]]);
});

test('an answer that was complete before the abort stays what it is', async () => {
  for (const step of [cancel, stop]) {
    const { slots, recorded, end } = harness();
    step(slots);
    await end(answer);
    expect(recorded).toEqual([answer]);
  }
});

test('a call that we cut off ourselves is not made again where nothing may be sent twice', async () => {
  const { slots, recorded, end } = harness(true);
  stop(slots);
  await end(letGo);
  expect(recorded).toMatchObject([{ kind: 'final', state: 'discarded', usage: { errorKind: 'worker_lost' } }]);
  const cancelled = harness(true);
  cancel(cancelled.slots);
  await cancelled.end(letGo);
  expect(cancelled.recorded).toMatchObject([{ kind: 'final', state: 'cancelled' }]);
  const unsent = harness(true);
  stop(unsent.slots);
  await unsent.end(released(item, 0));
  expect(unsent.recorded).toMatchObject([{ kind: 'released' }]);
});
