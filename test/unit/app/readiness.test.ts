import { expect, test } from 'vitest';
import { createReadiness, type Step } from '../../../lib/app/readiness.ts';
import { ApiError, ConfigError } from '../../../lib/base/errors.ts';
import { createLog } from '../../../lib/base/log.ts';

const log = createLog('silent');

/** A step whose runs the test answers: a reason, null for done, or an error. */
function controlled(waiting: string) {
  const runs: PromiseWithResolvers<string | null>[] = [];
  const started: (() => void)[] = [];
  const step: Step = {
    waiting,
    run() {
      const run = Promise.withResolvers<string | null>();
      runs.push(run);
      for (const resolve of started.splice(0)) resolve();
      return run.promise;
    },
  };
  const nth = async (n: number) => {
    while (runs.length < n) await new Promise<void>((resolve) => started.push(resolve));
    return runs[n - 1]!;
  };
  return { step, runs, nth };
}

const turn = () => new Promise((resolve) => setImmediate(resolve));

test('steps run one after the other, and what is missing is said meanwhile', async () => {
  const [first, second] = [controlled('waiting for one'), controlled('waiting for two')];
  const readiness = createReadiness([first.step, second.step], log, new AbortController().signal);
  expect(readiness.notReady()).toEqual({ code: 'not_ready', reason: 'waiting for one' });
  expect(second.runs).toHaveLength(0);
  (await first.nth(1)).resolve(null);
  const run = await second.nth(1);
  expect(readiness.notReady()?.reason).toBe('waiting for two');
  run.resolve(null);
  await readiness.done;
  expect(readiness.notReady()).toBeNull();
});

test('a step that is not done yet gives its reason and runs again; so does one that fails', async () => {
  const only = controlled('waiting for it');
  const readiness = createReadiness([only.step], log, new AbortController().signal);
  (await only.nth(1)).resolve('payload directory is not shared');
  await turn();
  expect(readiness.notReady()?.reason).toBe('payload directory is not shared');
  (await only.nth(2)).reject(new Error('password in a DSN'));
  await turn();
  expect(readiness.notReady()?.reason).toBe('waiting for it');
  (await only.nth(3)).reject(new ApiError('internal'));
  (await only.nth(4)).resolve(null);
  await readiness.done;
  expect(readiness.notReady()).toBeNull();
});

test('a configuration error ends the start', async () => {
  const [first, second] = [controlled('a'), controlled('b')];
  const readiness = createReadiness([first.step, second.step], log, new AbortController().signal);
  (await first.nth(1)).reject(new ConfigError('RELAY_X is not valid'));
  await expect(readiness.done).rejects.toThrow('RELAY_X is not valid');
  expect(readiness.notReady()).not.toBeNull();
  expect(second.runs).toHaveLength(0);
});

test('a stop during the start ends it without ever being ready', async () => {
  const stop = new AbortController();
  const only = controlled('a');
  const readiness = createReadiness([only.step], log, stop.signal);
  (await only.nth(1)).resolve('not yet');
  await turn();
  stop.abort();
  await readiness.done;
  expect(readiness.notReady()).not.toBeNull();
});

test('what was ready can stop being so, and be so again', async () => {
  const readiness = createReadiness([], log, new AbortController().signal);
  await readiness.done;
  readiness.degrade('payload directory is not shared');
  expect(readiness.notReady()).toEqual({ code: 'not_ready', reason: 'payload directory is not shared' });
  readiness.degrade(null);
  expect(readiness.notReady()).toBeNull();
});
