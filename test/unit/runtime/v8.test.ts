import { constants, PerformanceObserver } from 'node:perf_hooks';
import { Worker } from 'node:worker_threads';
import { expect, test } from 'vitest';
import { collectYoung, rawJSON, SMALL_THREAD } from '../../../lib/runtime/v8.ts';

// Canaries: each fails when V8 does not do any more what lib/runtime asks of it.

const MIB = 2 ** 20;

test('collectYoung runs a minor collection, not one of the whole heap', async () => {
  const kinds = new Promise<number[]>((resolve) => {
    const observer = new PerformanceObserver((list) => {
      observer.disconnect();
      resolve(list.getEntries().map((entry) => (entry as unknown as { detail: { kind: number } }).detail.kind));
    });
    observer.observe({ entryTypes: ['gc'] });
  });
  collectYoung();
  expect(await kinds).toContain(constants.NODE_PERFORMANCE_GC_MINOR);
  expect(await kinds).not.toContain(constants.NODE_PERFORMANCE_GC_MAJOR);
});

test('collectYoung frees memory outside of the heap that V8 would let pile up', async () => {
  collectYoung();
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 256; i++) Buffer.allocUnsafeSlow(64 * 1024).fill(1);
  const full = process.memoryUsage().arrayBuffers;
  expect(full - before).toBeGreaterThan(12 * MIB); // else V8 looked by itself, and this test says nothing
  collectYoung();
  await expect.poll(() => full - process.memoryUsage().arrayBuffers).toBeGreaterThan(12 * MIB);
});

/** The heap that a thread may have, as V8 tells it inside. */
function heapLimit(options: object): Promise<number> {
  const code = `require('worker_threads').parentPort.postMessage(require('v8').getHeapStatistics().heap_size_limit)`;
  return new Promise((resolve, reject) => {
    new Worker(code, { eval: true, ...options }).on('message', resolve).on('error', reject);
  });
}

test('a small thread has a small heap', async () => {
  const small = await heapLimit({ resourceLimits: SMALL_THREAD });
  expect(small).toBeLessThanOrEqual(64 * MIB);
  expect(await heapLimit({})).toBeGreaterThan(4 * small);
});

test('rawJSON keeps every digit', () => {
  expect(JSON.stringify({ cost: rawJSON('9007199254740993') })).toBe('{"cost":9007199254740993}');
});
