import { expect, test } from 'vitest';
import { CHUNK_BYTES } from '../../../../lib/batch/results/block.ts';
import { chunkMemory } from '../../../../lib/batch/results/chunk-memory.ts';

test('memory that was given back is used again, whole, and nothing else is', () => {
  const memory = chunkMemory();
  const [one, two] = [memory.take(), memory.take()];
  expect(one.buffer).not.toBe(two.buffer);
  memory.give(one.subarray(0, 10));
  const again = memory.take();
  expect([again.buffer === one.buffer, again.length]).toEqual([true, CHUNK_BYTES]);
  expect(memory.take().buffer).not.toBe(two.buffer);
});

test('memory that was given back twice is still lent to one at a time', () => {
  const memory = chunkMemory();
  const chunk = memory.take();
  memory.give(chunk);
  memory.give(chunk);
  expect(memory.take().buffer).not.toBe(memory.take().buffer);
});

test('memory of others is left alone', () => {
  const memory = chunkMemory();
  const others = Buffer.alloc(CHUNK_BYTES);
  memory.give(others);
  memory.give(chunkMemory().take());
  expect(memory.take().buffer).not.toBe(others.buffer);
});
