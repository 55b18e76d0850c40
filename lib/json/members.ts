import type { Buffer } from 'node:buffer';
import { expectEnd, skipKey, skipSpace, skipValue } from './scan.ts';

/** Where a value stands in its buffer: `end` is exclusive, white space around it is outside. */
export interface Span {
  start: number;
  end: number;
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

/**
 * Passes the object whose brace is at `from`; offsets and faults as in scan.ts. For each member `visit` gets the offset
 * of its key's quote and of its value's first byte and gives the end of the value (it calls skipValue, or goes deeper),
 * or a fault to stop. Duplicates are visited too: the last one is what JSON.parse would keep.
 */
export function scanMembers(
  bytes: Uint8Array,
  from: number,
  visit: (keyAt: number, valueAt: number) => number,
): number {
  if (bytes[from] !== OPEN_BRACE) return -1 - from;
  let at = skipSpace(bytes, from + 1);
  if (at < bytes.length && bytes[at] === CLOSE_BRACE) return at + 1;
  for (;;) {
    const valueAt = skipKey(bytes, at);
    if (valueAt < 0) return valueAt;
    at = visit(at, valueAt);
    if (at < 0) return at;
    at = skipSpace(bytes, at);
    if (at < bytes.length && bytes[at] === CLOSE_BRACE) return at + 1;
    if (at >= bytes.length || bytes[at] !== COMMA) return -1 - at;
    at = skipSpace(bytes, at + 1);
  }
}

/** Bytes between two stops of `scanElements`: two milliseconds. */
const TURN_BYTES = 1024 * 1024;

/**
 * Passes the array whose bracket is at `from`, calling `visit` with the span of each element; gives the offset behind it, or a
 * fault. Stops about every mebibyte, between two elements, for whoever wants the event loop to go round.
 */
export function* scanElements(
  bytes: Uint8Array,
  from: number,
  visit: (start: number, end: number) => void,
): Generator<void, number, void> {
  if (bytes[from] !== OPEN_BRACKET) return -1 - from;
  let turn = from + TURN_BYTES;
  let at = skipSpace(bytes, from + 1);
  if (at < bytes.length && bytes[at] === CLOSE_BRACKET) return at + 1;
  for (;;) {
    const end = skipValue(bytes, at);
    if (end < 0) return end;
    visit(at, end);
    at = skipSpace(bytes, end);
    if (at < bytes.length && bytes[at] === CLOSE_BRACKET) return at + 1;
    if (at >= bytes.length || bytes[at] !== COMMA) return -1 - at;
    at = skipSpace(bytes, at + 1);
    if (at >= turn) {
      yield;
      turn = at + TURN_BYTES;
    }
  }
}

/**
 * Whether the valid key that starts with the quote at `keyAt` is `name` (ASCII). An escaped key (`requ\u0065sts`)
 * counts as what it means; it is decoded only when it is short enough to be `name`, whatever its own length.
 */
export function keyIs(bytes: Buffer, keyAt: number, name: string): boolean {
  const start = keyAt + 1;
  for (let i = 0; i < name.length; i++) {
    const byte = bytes[start + i]!;
    if (byte === BACKSLASH) return escapedKeyIs(bytes, keyAt, name);
    if (byte !== name.charCodeAt(i)) return false;
  }
  return bytes[start + name.length] === QUOTE;
}

function escapedKeyIs(bytes: Buffer, keyAt: number, name: string): boolean {
  // One character of an ASCII name takes six bytes at most: \u0065.
  const longest = keyAt + 1 + 6 * name.length;
  let at = keyAt + 1;
  while (at <= longest && bytes[at] !== QUOTE) at += bytes[at] === BACKSLASH ? 2 : 1;
  return at <= longest && JSON.parse(bytes.toString('utf8', keyAt, at + 1)) === name;
}

/** What `findMembers` finds: `fault` as in scan.ts. */
export type Members =
  | { kind: 'object'; members: Map<string, Span> }
  | { kind: 'not_object' }
  | { kind: 'invalid'; fault: number };

/**
 * Validates a whole JSON document and gives the spans of the top-level members that are called for, the last of
 * duplicates; absent ones are absent from the map. Only these cost memory, however many members there are. The caller
 * has checked `isUtf8`. `from` is where the document starts (after a byte order mark).
 */
export function findMembers(bytes: Buffer, names: readonly string[], from = 0): Members {
  const members = new Map<string, Span>();
  const start = skipSpace(bytes, from);
  const isObject = start < bytes.length && bytes[start] === OPEN_BRACE;
  const end = isObject
    ? scanMembers(bytes, start, (keyAt, valueAt) => {
        const valueEnd = skipValue(bytes, valueAt);
        const name = valueEnd < 0 ? undefined : names.find((candidate) => keyIs(bytes, keyAt, candidate));
        if (name !== undefined) members.set(name, { start: valueAt, end: valueEnd });
        return valueEnd;
      })
    : skipValue(bytes, start);
  const fault = expectEnd(bytes, end);
  if (fault < 0) return { kind: 'invalid', fault };
  return isObject ? { kind: 'object', members } : { kind: 'not_object' };
}
