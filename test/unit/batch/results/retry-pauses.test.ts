import { expect, test } from 'vitest';
import { createRetryPauses } from '../../../../lib/batch/results/retry-pauses.ts';

function pausesAt() {
  const clock = { now: 0 };
  return { clock, pauses: createRetryPauses(() => clock.now) };
}

test('a failure is tried again after 10 s, then after twice the time before, at most an hour', () => {
  const { clock, pauses } = pausesAt();
  const waits: number[] = [];
  for (let i = 0; i < 11; i++) {
    const since = clock.now;
    pauses.failed('a');
    while (!pauses.mayTry('a')) clock.now += 1000;
    waits.push((clock.now - since) / 1000);
  }
  expect(waits).toEqual([10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
});

test('others are not held up, and a success begins anew', () => {
  const { clock, pauses } = pausesAt();
  pauses.failed('a');
  clock.now = 10_000;
  pauses.failed('a');
  expect([pauses.mayTry('a'), pauses.mayTry('b')]).toEqual([false, true]);
  expect(pauses.paused()).toEqual(['a']);
  pauses.succeeded('a');
  expect(pauses.size()).toBe(0);
  pauses.failed('a');
  clock.now += 10_000;
  expect(pauses.mayTry('a')).toBe(true);
});

test('what is never tried again, as after a delete, is forgotten; what fails on and on is not', () => {
  const { clock, pauses } = pausesAt();
  for (let i = 0; i < 100; i++) pauses.failed(`deleted-${i}`);
  const most: number[] = [];
  for (let i = 0; i < 20; i++) {
    pauses.failed('unreadable');
    while (!pauses.mayTry('unreadable')) clock.now += 5000;
    most.push(pauses.size());
  }
  expect(most[0]).toBe(101);
  expect(most.at(-1)).toBe(1);
  pauses.failed('unreadable');
  clock.now += 3_595_000;
  expect(pauses.mayTry('unreadable')).toBe(false);
});
