import { Buffer } from 'node:buffer';
import { piecesOf, type Steps } from '../base/turns.ts';
import { MAX_MEMBERS, nameOf } from './members.ts';
import { skipSpace } from './scan.ts';
import { utf8Check } from './utf8.ts';
import { advance, startWalk, type Walk, type WalkEvents } from './walk.ts';

/** Receives the parts of a document in their order. The bytes passed are valid until the call returns. */
export interface ElementSink {
  /** The array's member begins, or is something else than an array. Called again for a duplicate, which counts. */
  begin(isArray: boolean): void;
  /** One element: bytes `start` to `end` (exclusive) of `bytes`; its first byte stands at `offset` of the document. */
  element(bytes: Buffer, start: number, end: number, offset: number): void;
  /** The value of one of the `members` asked for. */
  member(name: string, bytes: Buffer, start: number, end: number): void;
}

/** Receives the members of each element, depth 1 being those of the element itself. Offsets count from its first byte. */
export interface ElementEvents extends WalkEvents {
  /** The element's bytes, as far as they are there. */
  bytes: Buffer;
  /** The next element begins. */
  begin(): void;
}

export interface ElementScannerOptions {
  /** Top-level member whose elements are wanted. */
  array: string;
  /** Other top-level members that are wanted, ASCII names. The rest is validated and dropped. */
  members: readonly string[];
  /** Longest element, or other value, in bytes: so much is kept in memory at most. */
  maxValueBytes: number;
  /** Told how much is kept in memory, in all, before it is; throws to refuse it. */
  reserve?(bytes: number): void;
  events?: ElementEvents;
}

/** The reason why a document was rejected. Offsets count from its start. */
export type StreamFault =
  | { kind: 'not_utf8' }
  | { kind: 'invalid'; offset: number; atEnd: boolean }
  | { kind: 'too_long'; offset: number; element: boolean }
  | { kind: 'not_object' }
  /** More than MAX_MEMBERS at the top level. */
  | { kind: 'too_many_members' };

/** Reads one document; after a fault it is not to be used again. */
export interface ElementScanner {
  /** After each step, what the sink was given last is still good. */
  push(chunk: Buffer): Steps<StreamFault | null>;
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
const TOO_MANY_MEMBERS: StreamFault = { kind: 'too_many_members' };
const NOT_OBJECT: StreamFault = { kind: 'not_object' };

/**
 * Finds the elements of a top-level array in a JSON document that comes in pieces, and checks the whole document as
 * JSON.parse would. At most one value is in memory at a time. A value that lies in one piece is passed where it is, once;
 * only one that is cut is copied together. A byte order mark at the very start is accepted.
 */
export function elementScanner(options: ElementScannerOptions, sink: ElementSink): ElementScanner {
  const utf8 = utf8Check();
  const carry = carrier(options.maxValueBytes, options.reserve ?? (() => {}));
  const names = [options.array, ...options.members];
  const { events } = options;
  let walk: Walk = startWalk(0); // through the current key, value or element
  let state = START;
  let mark = 0; // bytes of a byte order mark passed
  let base = 0; // offset of the current piece
  let keys = 0;
  let name: string | undefined; // of the current member, if it is wanted

  const invalid = (offset: number): StreamFault => ({ kind: 'invalid', offset, atEnd: false });
  const endsAt = (offset: number): StreamFault => ({ kind: 'invalid', offset, atEnd: true });
  const tooLong = (offset: number): StreamFault => ({ kind: 'too_long', offset, element: state === ELEMENT });

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
      name = nameOf(bytes, start, names);
      keys++;
      state = COLON;
    }
  };

  /** Continues through the current token; true: it continues behind `bytes`, which start where it does. */
  const walkOn = (bytes: Buffer): boolean => {
    if (state === ELEMENT && events !== undefined) events.bytes = bytes;
    return advance(walk, bytes, bytes.length);
  };

  /** Passes a token that starts at `at`: returns its end, or the chunk's when it continues, or a fault. */
  const pass = (chunk: Buffer, at: number): number | StreamFault => {
    if (state === KEY && chunk[at] !== QUOTE) return invalid(base + at);
    const isElement = state === ELEMENT && events !== undefined;
    if (isElement) events.begin();
    walk = isElement ? startWalk(0, 1, events) : startWalk(0);
    const bytes = chunk.subarray(at);
    if (walkOn(bytes)) return carry.start(bytes, base + at) ? chunk.length : tooLong(base + at);
    const { end } = walk;
    if (end < 0) return invalid(base + at - 1 - end);
    if (end > options.maxValueBytes) return tooLong(base + at);
    take(bytes, 0, end, base + at);
    return at + end;
  };

  /** The same for one whose start came before. */
  const goOn = (chunk: Buffer): number | StreamFault => {
    const before = carry.bytes().length;
    const isWhole = carry.add(chunk);
    const bytes = carry.bytes();
    if (walkOn(bytes)) return isWhole ? chunk.length : tooLong(carry.offset());
    const { end } = walk;
    if (end < 0) return invalid(carry.offset() - 1 - end);
    carry.drop();
    take(bytes, 0, end, carry.offset());
    return end - before;
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

  function* pushPiece(piece: Buffer): Steps<StreamFault | null> {
    if (!utf8.push(piece)) return NOT_UTF8;
    let at = 0;
    while (state === START && mark < 3 && base + at === mark && at < piece.length && piece[at] === BOM[mark]) {
      mark++;
      at++;
    }
    if (carry.active() && piece.length > 0) {
      const next = goOn(piece);
      if (typeof next !== 'number') return next;
      at = next;
      yield; // before the next cut value is put in the place of this one
    }
    for (;;) {
      if (at < piece.length && piece[at]! <= SPACE) at = skipSpace(piece, at);
      if (at >= piece.length) break;
      const next = step(piece, at);
      if (typeof next !== 'number') return next;
      at = next;
    }
    base += piece.length;
    return keys > MAX_MEMBERS ? TOO_MANY_MEMBERS : null;
  }

  return {
    *push(chunk) {
      for (const piece of piecesOf(chunk)) {
        const fault = yield* pushPiece(piece);
        if (fault !== null) return fault;
        yield;
      }
      return null;
    },
    end() {
      if (!utf8.end()) return NOT_UTF8;
      return state === END ? null : endsAt(base);
    },
  };
}

/** Beyond this the next buffer is of the full size: doubling on would copy, and hold, twice as much. */
const GROW_UNTIL = 1024 * 1024;

/** So little is in memory for any request, and not told. */
const KEEP_BYTES = 64 * 1024;

/**
 * Puts a value together that is cut by the ends of pieces. The buffer is kept for the next one; memory of its that was
 * never written costs only addresses.
 */
function carrier(maxBytes: number, reserve: (bytes: number) => void) {
  let buffer = Buffer.allocUnsafeSlow(0);
  let length = 0;
  let start = 0;
  let isActive = false;
  let reserved = KEEP_BYTES;

  /** False: there was no room for all of it. */
  const add = (chunk: Buffer): boolean => {
    const needed = Math.min(maxBytes, length + chunk.length);
    if (needed > reserved) {
      // All at once, as the buffer below: of many that grow together none would come to its end.
      reserved = needed > GROW_UNTIL ? maxBytes : GROW_UNTIL;
      reserve(reserved);
    }
    if (needed > buffer.length) {
      const size = needed > GROW_UNTIL ? maxBytes : Math.min(maxBytes, Math.max(2 * needed, 64 * 1024));
      const grown = Buffer.allocUnsafeSlow(size);
      buffer.copy(grown, 0, 0, length);
      buffer = grown;
    }
    const copied = chunk.copy(buffer, length, 0, needed - length);
    length = needed;
    return copied === chunk.length;
  };

  return {
    active: () => isActive,
    /** Where the value stands in the document. */
    offset: () => start,
    bytes: () => buffer.subarray(0, length),
    /** Takes the start of a value, up to the piece's end; false when that alone is too long. */
    start(bytes: Buffer, offset: number): boolean {
      length = 0;
      start = offset;
      isActive = true;
      return add(bytes);
    },
    /** Takes more of it; false when there was no room for the whole piece. */
    add,
    drop() {
      isActive = false;
    },
  };
}
