/** The part of an object that a `Range` header asks for. */
export type RangeVerdict =
  | { kind: 'whole' }
  | { kind: 'part'; offset: number; length: number }
  /** Valid, but it begins after the end: 416. */
  | { kind: 'outside' };

const WHOLE: RangeVerdict = { kind: 'whole' };
const SINGLE = /^bytes=[ \t]*(\d*)-(\d*)[ \t]*$/i;

/**
 * Reads a `Range` header by RFC 9110 section 14: `bytes=a-b`, `bytes=a-` and the last n bytes, `bytes=-n`. A
 * header that is malformed, in another unit or of several ranges counts as absent, so it means the whole. Ends are cut
 * to the size.
 */
export function parseRange(header: string | undefined, size: number): RangeVerdict {
  const match = header === undefined ? null : SINGLE.exec(header);
  if (match === null) return WHOLE;
  const [, first = '', last = ''] = match;
  if (first === '') return last === '' ? WHOLE : suffix(Number(last), size);
  const offset = Number(first);
  const end = last === '' ? size - 1 : Math.min(Number(last), size - 1);
  if (last !== '' && Number(last) < offset) return WHOLE;
  if (offset >= size) return { kind: 'outside' };
  return { kind: 'part', offset, length: end - offset + 1 };
}

function suffix(asked: number, size: number): RangeVerdict {
  const length = Math.min(asked, size);
  return length === 0 ? { kind: 'outside' } : { kind: 'part', offset: size - length, length };
}
