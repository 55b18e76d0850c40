import { Buffer } from 'node:buffer';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { growingBuffer } from '../../../lib/base/growing-buffer.ts';
import { atOnce } from '../../../lib/base/turns.ts';
import { createGate } from '../../../lib/upstream/gate.ts';

const MIB = 1024 * 1024;

test('holds what was appended, whatever was announced', () => {
  const piece = fc.oneof({ weight: 5, arbitrary: fc.nat(3000) }, { weight: 1, arbitrary: fc.nat(700_000) });
  const announced = fc.constantFrom(0, 1, 5000, MIB, 2 * MIB, 60 * MIB);
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), announced, (sizes, expected) => {
      const pieces = sizes.map((size, i) => Buffer.alloc(size, `${i}`));
      const growing = growingBuffer(expected);
      for (const one of pieces) growing.append(one);
      const all = Buffer.concat(pieces);
      expect(growing.size()).toBe(all.length);
      const bytes = growing.whole() ?? atOnce(growing.join());
      expect(bytes.equals(all)).toBe(true);
    }),
    { numRuns: 50 },
  );
});

test('has memory of its own, which is about as large as what has arrived', () => {
  const growing = growingBuffer(64 * MIB); // a claim
  growing.append(Buffer.alloc(20, 'x'));
  expect(growing.whole()!.buffer.byteLength).toBeLessThanOrEqual(4096);
  for (let i = 0; i < 100_000; i++) growing.append(Buffer.from('y'));
  expect(growing.whole()!.buffer.byteLength).toBeLessThanOrEqual(400_000);
  growing.append(Buffer.alloc(3 * MIB, 'z'));
  expect(growing.whole()!.buffer.byteLength).toBe(64 * MIB);
});

test('of unknown length is joined without a second copy of it in memory', () => {
  const growing = growingBuffer(0);
  for (let i = 0; i < 5; i++) growing.append(Buffer.alloc(MIB, 'z'));
  expect(growing.whole()).toBeNull();
  const joining = growing.join();
  let steps = 0;
  let step = joining.next();
  for (; !step.done; step = joining.next()) steps++;
  expect(steps).toBeGreaterThanOrEqual(5);
  expect(step.value.buffer.byteLength).toBe(5 * MIB);
});

test('a gate lets the next one in when one leaves', async () => {
  const gate = createGate(2);
  const inside: number[] = [];
  const enter = (n: number) => gate.enter().then(() => inside.push(n));
  await Promise.all([enter(1), enter(2)]);
  const third = enter(3);
  const fourth = enter(4);
  await Promise.resolve();
  expect(inside).toEqual([1, 2]);
  gate.leave();
  await third;
  expect(inside).toEqual([1, 2, 3]);
  gate.leave();
  gate.leave();
  await fourth;
  gate.leave();
  await enter(5);
  await enter(6);
  expect(inside).toEqual([1, 2, 3, 4, 5, 6]);
});
