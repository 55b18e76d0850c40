import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { fileIdOf, uuidOfFileId } from '../../../../lib/surfaces/files/file-object.ts';
import { parseRange } from '../../../../lib/surfaces/files/range.ts';

describe('parseRange of 10 bytes', () => {
  test.each<[string | undefined, number, number]>([
    ['bytes=0-0', 0, 1],
    ['bytes=2-4', 2, 3],
    ['bytes=2-', 2, 8],
    ['bytes=9-', 9, 1],
    ['bytes=4-99', 4, 6],
    ['bytes=0-99999999999999999999', 0, 10],
    ['bytes=-3', 7, 3],
    ['bytes=-99', 0, 10],
    ['Bytes= 2-4 ', 2, 3],
  ])('reads %s as a part', (header, offset, length) => {
    expect(parseRange(header, 10)).toEqual({ kind: 'part', offset, length });
  });

  test.each(['bytes=10-', 'bytes=10-20', 'bytes=99999999999999999999-', 'bytes=-0'])('finds %s outside', (header) => {
    expect(parseRange(header, 10)).toEqual({ kind: 'outside' });
  });

  test.each([
    undefined,
    '',
    'bytes',
    'bytes=',
    'bytes=-',
    'bytes=4-2',
    'bytes=a-b',
    'bytes=1.5-2',
    'bytes=0-1,3-4',
    'bytes=-1,0-1',
    'lines=0-1',
    'bytes 0-1/10',
    'bytes=0--1',
  ])('takes %j for the whole', (header) => {
    expect(parseRange(header, 10)).toEqual({ kind: 'whole' });
  });

  test('never leaves the object, of whatever size', () => {
    const end = fc.oneof(fc.constant(''), fc.nat(50).map(String));
    fc.assert(
      fc.property(fc.nat(40), end, end, (size, first, last) => {
        const verdict = parseRange(`bytes=${first}-${last}`, size);
        if (verdict.kind !== 'part') return;
        expect(verdict.length).toBeGreaterThan(0);
        expect(verdict.offset + verdict.length).toBeLessThanOrEqual(size);
      }),
    );
  });
});

describe('ids of files', () => {
  test('come back as the UUID they were made of', () => {
    fc.assert(fc.property(fc.uuid(), (uuid) => uuidOfFileId(fileIdOf(uuid)) === uuid));
  });

  const digits = '0193b0c0000070008000000000000001';
  test.each([
    '',
    'file-',
    digits,
    `file-${digits.slice(1)}`,
    `file-${digits}0`,
    `file-${digits}\n`,
    ` file-${digits}`,
    `file_${digits}`,
    `FILE-${digits}`,
    `file-${digits.toUpperCase()}`,
    'file-0193b0c0-0000-7000-8000-000000000001',
  ])('are nothing like %j', (id) => {
    expect(uuidOfFileId(id)).toBeNull();
  });
});
