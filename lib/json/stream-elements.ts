import { Buffer } from 'node:buffer';
import { keyIs } from './members.ts';
import { skipSpace, skipString, skipValue } from './scan.ts';
import { utf8Check } from './utf8.ts';
import { type ValueEnd, valueEnd } from './value-end.ts';

/** What is found on the way, in the order of the document. The bytes given are good until the call returns. */
export interface ElementSink {
  /** The array's member begins, or is something else than an array. Called again for a duplicate, which counts. */
  begin(isArray: boolean): void;
  /** One element: bytes `start` to `end` (exclusive) of `bytes`; its first byte stands at `offset` of the document. */
  element(bytes: Buffer, start: number, end: number, offset: number): void;
  /** The value of one of the `members` asked for. */
  member(name: string, bytes: Buffer, start: number, end: number): void;
}

export interface ElementScannerOptions {
  /** Top-level member whose elements are wanted. */
  array: string;
  /** Other top-level members that are wanted, ASCII names. The rest is validated and dropped. */
  members: readonly string[];
  /** Longest element, or other value, in bytes: so much is kept in memory at most. */
  maxValueBytes: number;
  /** Passes one element as `skipValue` does, which it is unless given. May be called again for the same element. */
  measure?(bytes: Buffer, at: number): number;
}

/** Why a document is none. Offsets count from its start. */
export type StreamFault =
  | { kind: 'not_utf8' }
  | { kind: 'invalid'; offset: number; atEnd: boolean }
  | { kind: 'too_long'; offset: number; element: boolean }
  | { kind: 'not_object' };

/** Reads one document; after a fault it is not to be used again. */
export interface ElementScanner {
  push(chunk: Buffer): StreamFault | null;
  end(): StreamFault | null;
}

const START = 0; // before the opening brace
const FIRST_KEY = 1; // a key or the closing brace
const KEY = 2;
const COLON = 3;
const VALUE = 4;
const AFTER_VALUE = 5;
const FIRST_ELEMENT = 6; // an element or the closing bracket
const ELEMENT = 7;
const AFTER_ELEMENT = 8;
const END = 9;

const SPACE = 0x20;
const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON_BYTE = 0x3a;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const BOM = [0xef, 0xbb, 0xbf];

const NOT_UTF8: StreamFault = { kind: 'not_utf8' };
const NOT_OBJECT: StreamFault = { kind: 'not_object' };

/**
 * Finds the elements of a top-level array in a JSON document that comes in pieces, and checks the whole document as
 * JSON.parse would; at most one value is in memory at a time. A value that lies in one piece is passed where it is, once;
 * only one that is cut is copied together. A byte order mark at the very start is accepted.
 */
export function elementScanner(options: ElementScannerOptions, sink: ElementSink): ElementScanner {
  const utf8 = utf8Check();
  const carry = carrier(options.maxValueBytes);
  const names = [options.array, ...options.members];
  const measureElement = options.measure ?? skipValue;
  let state = START;
  let mark = 0; // bytes of a byte order mark passed
  let base = 0; // offset of the current piece
  let name: string | undefined; // of the current member, if it is wanted

  const invalid = (offset: number): StreamFault => ({ kind: 'invalid', offset, atEnd: false });
  const endsAt = (offset: number): StreamFault => ({ kind: 'invalid', offset, atEnd: true });
  const tooLong = (offset: number): StreamFault => ({ kind: 'too_long', offset, element: state === ELEMENT });

  const measure = (bytes: Buffer, at: number): number => {
    if (state === ELEMENT) return measureElement(bytes, at);
    if (state === VALUE) return skipValue(bytes, at);
    return bytes[at] === QUOTE ? skipString(bytes, at + 1) : -1 - at;
  };

  /** A key, member value or element is whole. */
  const take = (bytes: Buffer, start: number, end: number, offset: number): void => {
    if (state === ELEMENT) {
      sink.element(bytes, start, end, offset);
      state = AFTER_ELEMENT;
    } else if (state === VALUE) {
      if (name === options.array) sink.begin(false);
      else if (name !== undefined) sink.member(name, bytes, start, end);
      state = AFTER_VALUE;
    } else {
      name = names.find((candidate) => keyIs(bytes, start, candidate));
      state = COLON;
    }
  };

  /** Passes a token that starts at `at`: gives its end, or the chunk's when it goes on, or a fault. */
  const pass = (chunk: Buffer, at: number): number | StreamFault => {
    const end = measure(chunk, at);
    if (end < 0 ? -1 - end >= chunk.length : end === chunk.length && isDigit(chunk[at]!)) {
      return carry.start(chunk, at, base + at) ? chunk.length : tooLong(base + at);
    }
    if (end < 0) return invalid(base - 1 - end);
    if (end - at > options.maxValueBytes) return tooLong(base + at);
    take(chunk, at, end, base + at);
    return end;
  };

  /** The same for one whose start came before. */
  const goOn = (chunk: Buffer): number | StreamFault => {
    const stop = carry.add(chunk);
    if (stop === TOO_LONG) return tooLong(carry.offset());
    if (stop < 0) return chunk.length;
    const bytes = carry.bytes();
    const end = measure(bytes, 0);
    if (end < 0) return invalid(carry.offset() - 1 - end);
    if (end !== bytes.length) return invalid(carry.offset() + end);
    carry.drop();
    take(bytes, 0, end, carry.offset());
    return stop;
  };

  /** Passes one byte of structure, or the token that starts there. */
  const step = (chunk: Buffer, at: number): number | StreamFault => {
    const byte = chunk[at]!;
    switch (state) {
      case START:
        if (byte !== OPEN_BRACE) return NOT_OBJECT;
        state = FIRST_KEY;
        return at + 1;
      case FIRST_KEY:
        if (byte === CLOSE_BRACE) {
          state = END;
          return at + 1;
        }
        state = KEY;
        return pass(chunk, at);
      case COLON:
        if (byte !== COLON_BYTE) return invalid(base + at);
        state = VALUE;
        return at + 1;
      case VALUE:
        if (name !== options.array || byte !== OPEN_BRACKET) return pass(chunk, at);
        sink.begin(true);
        state = FIRST_ELEMENT;
        return at + 1;
      case AFTER_VALUE:
        if (byte !== COMMA && byte !== CLOSE_BRACE) return invalid(base + at);
        state = byte === COMMA ? KEY : END;
        return at + 1;
      case FIRST_ELEMENT:
        if (byte === CLOSE_BRACKET) {
          state = AFTER_VALUE;
          return at + 1;
        }
        state = ELEMENT;
        return pass(chunk, at);
      case AFTER_ELEMENT:
        if (byte !== COMMA && byte !== CLOSE_BRACKET) return invalid(base + at);
        state = byte === COMMA ? ELEMENT : AFTER_VALUE;
        return at + 1;
      case END:
        return invalid(base + at);
      default:
        return pass(chunk, at); // KEY or ELEMENT
    }
  };

  return {
    push(chunk) {
      if (!utf8.push(chunk)) return NOT_UTF8;
      let at = 0;
      while (state === START && mark < 3 && base + at === mark && at < chunk.length && chunk[at] === BOM[mark]) {
        mark++;
        at++;
      }
      if (carry.active() && chunk.length > 0) {
        const next = goOn(chunk);
        if (typeof next !== 'number') return next;
        at = next;
      }
      for (;;) {
        if (at < chunk.length && chunk[at]! <= SPACE) at = skipSpace(chunk, at);
        if (at >= chunk.length) break;
        const next = step(chunk, at);
        if (typeof next !== 'number') return next;
        at = next;
      }
      base += chunk.length;
      return null;
    },
    end() {
      if (!utf8.end()) return NOT_UTF8;
      if (carry.active()) {
        // Cut off; unless it is faulty before that.
        const bytes = carry.bytes();
        const end = measure(bytes, 0);
        const fault = end < 0 ? -1 - end : end; // a word may be whole, with a byte behind it that no word has
        return fault < bytes.length ? invalid(carry.offset() + fault) : endsAt(base);
      }
      return state === END ? null : endsAt(base);
    },
  };
}

/** What may go on where a piece ends, although it could be whole. */
function isDigit(byte: number): boolean {
  return byte === 0x2d || (byte >= 0x30 && byte <= 0x39);
}

const GOES_ON = -1;
const TOO_LONG = -2;
/** Beyond this the next buffer is of the full size: doubling on would copy, and hold, twice as much. */
const GROW_UNTIL = 1024 * 1024;

/**
 * Puts a value together that is cut by the ends of pieces. The buffer is kept for the next one; memory of its that was
 * never written costs nothing but addresses.
 */
function carrier(maxBytes: number) {
  let buffer = Buffer.allocUnsafeSlow(0);
  let length = 0;
  let start = 0;
  let finder: ValueEnd | null = null;

  const append = (chunk: Buffer, from: number, to: number): boolean => {
    const needed = length + to - from;
    if (needed > maxBytes) return false;
    if (needed > buffer.length) {
      const size = needed > GROW_UNTIL ? maxBytes : Math.min(maxBytes, Math.max(2 * needed, 64 * 1024));
      const grown = Buffer.allocUnsafeSlow(size);
      buffer.copy(grown, 0, 0, length);
      buffer = grown;
    }
    chunk.copy(buffer, length, from, to);
    length = needed;
    return true;
  };

  return {
    active: () => finder !== null,
    /** Where the value stands in the document. */
    offset: () => start,
    bytes: () => buffer.subarray(0, length),
    /** Takes the start of a value, up to the piece's end; false when that alone is too long. */
    start(chunk: Buffer, from: number, offset: number): boolean {
      length = 0;
      start = offset;
      finder = valueEnd();
      finder.find(chunk, from);
      return append(chunk, from, chunk.length);
    },
    /** Takes more of it: gives where it ends in this piece, GOES_ON or TOO_LONG. */
    add(chunk: Buffer): number {
      const end = finder!.find(chunk, 0);
      if (!append(chunk, 0, end < 0 ? chunk.length : end)) return TOO_LONG;
      return end < 0 ? GOES_ON : end;
    },
    drop() {
      finder = null;
    },
  };
}
