import fc from 'fast-check';
import { expect, test } from 'vitest';
import { durationsOf } from '../../../lib/usage/durations.ts';

const pack = (values: readonly number[]) => {
  const bytes = Buffer.alloc(3 + values.length * 4).subarray(3);
  for (const [i, value] of values.entries()) bytes.writeInt32BE(value, i * 4);
  return bytes;
};

test('no duration has no figures', () => {
  const none = { avg: null, p50: null, p95: null, p99: null, max: null };
  expect(durationsOf(null)).toEqual(none);
  expect(durationsOf(pack([]))).toEqual(none);
});

test('percentiles are those of the sorted durations, few or many, near or far apart', () => {
  const duration = fc.oneof(fc.integer({ min: 0, max: 20 }), fc.integer({ min: 0, max: 2 ** 31 - 1 }));
  const lists = fc.oneof(
    fc.array(duration, { minLength: 1 }),
    fc.array(fc.integer({ min: 0, max: 300 }), { minLength: 1, maxLength: 2000 }),
  );
  fc.assert(
    fc.property(lists, (values) => {
      const sorted = values.toSorted((a, b) => a - b);
      const at = (share: number) => sorted[Math.ceil(share * sorted.length) - 1];
      expect(durationsOf(pack(values))).toEqual({
        avg: Math.round((values.reduce((a, b) => a + b, 0) * 1000) / values.length) / 1000,
        p50: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
        max: sorted.at(-1),
      });
    }),
  );
});
