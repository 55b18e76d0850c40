import { expect, test } from 'vitest';
import { sqsEvent, worker } from '../../handlers/worker.ts';
import type { Wake } from '../../lib/queue/queue.ts';

/** An event with these message bodies. */
function event(...bodies: string[]) {
  const [record] = sqsEvent({ kind: 'work' }).Records;
  return { Records: bodies.map((body) => ({ ...record!, body })) };
}

test('each kind of wake-up arrives as it was sent', async () => {
  const wakes: Wake[] = [
    { kind: 'work' },
    { kind: 'cancel', batchId: '01890000-0000-7000-8000-000000000000' },
    { kind: 'catalog' },
  ];
  for (const wake of wakes) {
    const seen: Wake[] = [];
    expect(await worker({ wake: (one) => void seen.push(one) })(sqsEvent(wake))).toEqual({ batchItemFailures: [] });
    expect(seen).toEqual([wake]);
  }
});

test('case 17: duplicates and messages that nobody understands only make it look for work; none is given back', async () => {
  const seen: Wake[] = [];
  const run = worker({ wake: (one) => void seen.push(one) });
  const bodies = ['{"kind":"work"}', '{"kind":"work"}', '', '{', 'null', '[]', '{"kind":"cancel"}', '{"kind":7}'];
  expect(await run(event(...bodies))).toEqual({ batchItemFailures: [] });
  expect(seen).toEqual(bodies.map(() => ({ kind: 'work' })));
  expect(await run(event())).toEqual({ batchItemFailures: [] });
});
