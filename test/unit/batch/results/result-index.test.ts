import fc from 'fast-check';
import { expect, test } from 'vitest';
import { INDEX_RECORD_BYTES, readIndexRecord, writeIndexRecord } from '../../../../lib/batch/results/result-index.ts';
import { ITEM_STATES } from '../../../../lib/model/batch.ts';
import { mergeRanges } from '../../../../lib/payloads/ranges.ts';

test('reads back what it wrote, in sixteen bytes of which the last five are zero', () => {
  const record = fc.record({
    offset: fc.integer({ min: 0, max: 2 ** 48 - 1 }),
    length: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
    state: fc.constantFrom(...ITEM_STATES),
  });
  fc.assert(
    fc.property(fc.array(record, { minLength: 1, maxLength: 20 }), (records) => {
      const buffer = Buffer.alloc(records.length * INDEX_RECORD_BYTES, 0xff);
      for (const [i, one] of records.entries()) writeIndexRecord(buffer, i, one);
      expect(records.map((_, i) => readIndexRecord(buffer, i))).toEqual(records);
      for (const i of records.keys()) expect(buffer.subarray(i * 16 + 11, i * 16 + 16)).toEqual(Buffer.alloc(5));
    }),
  );
});

test('keeps the format: big endian offset, length, state number', () => {
  const buffer = Buffer.alloc(16);
  writeIndexRecord(buffer, 0, { offset: 0x010203040506, length: 0x0708090a, state: 'discarded' });
  expect(buffer.toString('hex')).toBe('0102030405060708090a030000000000');
});

test('refuses a record whose state does not exist', () => {
  expect(() => readIndexRecord(Buffer.alloc(16, 0xff), 0)).toThrow('damaged');
});

test('merges ranges into reads that hold each range once, stay bounded and leave out wide gaps', () => {
  const range = fc.record({
    offset: fc.integer({ min: 0, max: 20_000_000 }),
    length: fc.integer({ min: 0, max: 3_000_000 }),
  });
  fc.assert(
    fc.property(fc.array(range, { maxLength: 60 }), (ranges) => {
      const merged = mergeRanges(ranges);
      const groups = merged.map(({ members }) => members);
      expect(groups.flat().sort((a, b) => a - b)).toEqual(ranges.map((_, i) => i));
      for (const { members: group, offset, length } of merged) {
        const start = Math.min(...group.map((i) => ranges[i]!.offset));
        expect(ranges[group[0]!]!.offset).toBe(start);
        let end = start;
        for (const i of group) {
          expect(ranges[i]!.offset - end).toBeLessThanOrEqual(64 * 1024);
          end = Math.max(end, ranges[i]!.offset + ranges[i]!.length);
        }
        expect([offset, offset + length]).toEqual([start, end]);
        if (group.length > 1) expect(end - start).toBeLessThanOrEqual(4 * 1024 * 1024);
      }
    }),
  );
});
