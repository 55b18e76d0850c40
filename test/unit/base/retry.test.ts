import { expect, test } from 'vitest';
import { type RetryOptions, retryUntil } from '../../../lib/base/retry.ts';

/** Work that fails so many times, and the pauses that were made for it. */
function failing(times: number, options: Partial<RetryOptions> = {}) {
  const pauses: number[] = [];
  const first: unknown[] = [];
  let tries = 0;
  const work = async () => {
    tries++;
    if (tries <= times) throw new Error(`failure ${tries}`);
    return 'done';
  };
  const run = () =>
    retryUntil(work, {
      min: 50,
      max: 1000,
      onFirst: (error) => void first.push((error as Error).message),
      pause: async (ms) => void pauses.push(ms),
      ...options,
    });
  return { run, pauses, first, tries: () => tries };
}

test('returns the value of the first try that succeeds, and says how many failed before', async () => {
  const { run, pauses, first } = failing(0);
  expect(await run()).toEqual({ aborted: false, value: 'done', failures: 0 });
  expect([pauses, first]).toEqual([[], []]);
  expect(await failing(3).run()).toEqual({ aborted: false, value: 'done', failures: 3 });
});

test('doubles the pause from the least to the most', async () => {
  const { run, pauses } = failing(7);
  await run();
  expect(pauses).toEqual([50, 100, 200, 400, 800, 1000, 1000]);
});

test('pauses no longer than the most, even after so many failures that the doubling overflows', async () => {
  const { run, pauses } = failing(1100);
  await run();
  expect(pauses.at(-1)).toBe(1000);
  expect(Math.max(...pauses)).toBe(1000);
});

test('reports the first failure of each streak and no other', async () => {
  const { run, first } = failing(4);
  await run();
  expect(first).toEqual(['failure 1']);
  await run();
  expect(first).toEqual(['failure 1']);
});

test('throws an error that no pause can mend, and reports it to nobody else', async () => {
  const { run, first, tries } = failing(9, { isRetryable: (error) => (error as Error).message !== 'failure 3' });
  await expect(run()).rejects.toThrow('failure 3');
  expect([first, tries()]).toEqual([['failure 1'], 3]);
});

test('does not begin once the signal has aborted', async () => {
  const { run, tries } = failing(0, { signal: AbortSignal.abort() });
  expect(await run()).toEqual({ aborted: true });
  expect(tries()).toBe(0);
});

test('an abort ends a pause at once', async () => {
  const stop = new AbortController();
  const waiting = retryUntil(() => Promise.reject(new Error('away')), {
    min: 3_600_000,
    max: 3_600_000,
    signal: stop.signal,
    onFirst: () => setImmediate(() => stop.abort()),
  });
  expect(await waiting).toEqual({ aborted: true });
});

test('a failure after the abort is not reported, and not thrown even if no pause could mend it', async () => {
  const stop = new AbortController();
  const reported: unknown[] = [];
  const ended = await retryUntil(
    async () => {
      stop.abort();
      throw new Error('cut off');
    },
    { min: 1, max: 1, signal: stop.signal, onFirst: (error) => void reported.push(error), isRetryable: () => false },
  );
  expect([ended, reported]).toEqual([{ aborted: true }, []]);
});

test('a success after the abort counts, because the work is done', async () => {
  const stop = new AbortController();
  const ended = await retryUntil(
    async () => {
      stop.abort();
      return 'done';
    },
    { min: 1, max: 1, signal: stop.signal },
  );
  expect(ended).toEqual({ aborted: false, value: 'done', failures: 0 });
});
