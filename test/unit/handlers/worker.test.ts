import { expect, test } from 'vitest';
import { sqsEvent, type WorkerApp, worker } from '../../../handlers/worker.ts';
import { createLog } from '../../../lib/base/log.ts';
import type { Wake } from '../../../lib/queue/queue.ts';

const log = createLog('silent');

/** An event with these message bodies; their ids are their positions. */
function event(...bodies: string[]) {
  const [record] = sqsEvent({ kind: 'work' }).Records;
  return { Records: bodies.map((body, i) => ({ ...record!, body, messageId: String(i) })) };
}

/** A handler that notes what it was woken for. */
function noting(): { run: ReturnType<typeof worker>; seen: Wake[] } {
  const seen: Wake[] = [];
  const app: WorkerApp = { log, wake: (wake) => void seen.push(wake) };
  return { run: worker(app), seen };
}

test('each kind of wake-up arrives as it was sent', async () => {
  const wakes: Wake[] = [
    { kind: 'work' },
    { kind: 'cancel', batchId: '01890000-0000-7000-8000-000000000000' },
    { kind: 'catalog' },
  ];
  for (const wake of wakes) {
    const { run, seen } = noting();
    expect(await run(sqsEvent(wake))).toEqual({ batchItemFailures: [] });
    expect(seen).toEqual([wake]);
  }
});

test('case 17: duplicates and messages that nobody understands only make it look for work', async () => {
  const { run, seen } = noting();
  const bodies = ['{"kind":"work"}', '{"kind":"work"}', '', '{', 'null', '[]', '{"kind":"cancel"}', '{"kind":7}'];
  expect(await run(event(...bodies))).toEqual({ batchItemFailures: [] });
  expect(seen).toEqual(bodies.map(() => ({ kind: 'work' })));
  expect(await run(event())).toEqual({ batchItemFailures: [] });
});

test('a look that failed gives its own message back and no other', async () => {
  let n = 0;
  const run = worker({ log, wake: () => (n++ === 1 ? Promise.reject(new Error('away')) : undefined) });
  expect(await run(event('{}', '{}', '{}'))).toEqual({ batchItemFailures: [{ itemIdentifier: '1' }] });
  expect(n).toBe(3);
});
