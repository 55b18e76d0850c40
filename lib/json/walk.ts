import { STEP_BYTES, type Steps } from '../base/turns.ts';
import { isWholeNumber, NUMBER_STARTS, passNumber, RAN_OUT, skipSpace, skipString, skipWord } from './scan.ts';

const COMMA = 0x2c;
const MINUS = 0x2d;
const COLON = 0x3a;
const SPACE = 0x20;
const QUOTE = 0x22;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

/**
 * Receives the outer levels of a document while it is walked through. The document's own value is at depth 0, its members
 * or elements at depth 1. Offsets count from the start of the bytes that are walked through.
 */
export interface WalkEvents {
  /** A member at `depth`: the quote of its key stands at `keyAt`. Its `value` comes next. */
  key(keyAt: number, depth: number): void;
  /** A value at `depth` (1 or more) is whole: a member's or an element. Duplicates come too: the last one counts. */
  value(start: number, end: number, depth: number): void;
}

/*
 * The phases of a walk, in the order in which a member passes them; the code depends on the order of their numbers.
 *
 *   '{' --> FIRST_KEY --.                                       .--> IN_STRING --.
 *              KEY -----+--> IN_KEY --> COLON_DUE --> VALUE ----+--> IN_NUMBER --+--> ENDED --> NEXT --comma--> KEY, VALUE
 *   '[' -------------------------------------> FIRST_VALUE --'  '----------------'      ^         |
 *                                                                                     CLOSE <--bracket
 */
const FIRST_KEY = 0; // a key, or the end of an empty object
const KEY = 1;
const IN_KEY = 2;
const COLON_DUE = 3;
const FIRST_VALUE = 4; // a value, or the end of an empty array
const VALUE = 5;
const IN_STRING = 6;
const IN_NUMBER = 7;
const ENDED = 8;
const CLOSE = 9; // at a closing bracket, which ends the container's value
const NEXT = 10; // a comma or a closing bracket
const TAIL = 11; // the white space at the end of a document
const DONE = 12;

/**
 * A walk through one JSON value, which can stop anywhere and continue: it accepts exactly what JSON.parse accepts (RFC
 * 8259; lone surrogate escapes, 1e400 and duplicate keys included) and builds nothing. It keeps no recursion, so that a
 * million nested arrays cost one bit each and no stack. The caller checks that the bytes are UTF-8.
 */
export interface Walk {
  /** Whether white space may stand around the value, and nothing else behind it. */
  readonly isDocument: boolean;
  /** Deepest level that `events` receives. */
  readonly levels: number;
  readonly events: WalkEvents;
  /** The first byte that is not passed yet. It may stand a few bytes before the `stop` of the last `advance`. */
  at: number;
  /** Where the value ends once it has ended, or the fault as in scan.ts. */
  end: number;
  /** Where the open or last value of each level starts, 0 to `levels`. */
  readonly starts: number[];
  phase: number;
  depth: number;
  /** The kinds of the innermost 32 open containers; lowest bit: the innermost is an object. The others are spilled. */
  kinds: number;
  spilled: number[] | null;
  /** The state of the number that is being passed, as in scan.ts. */
  number: number;
  /** The quote of the key that is being passed, if its level is one of `levels`. */
  keyAt: number;
}

const NO_EVENTS: WalkEvents = { key() {}, value() {} };

/** A walk through the value whose first byte is at `from`; white space before it is a fault. */
export function startWalk(from: number, levels = 0, events = NO_EVENTS, isDocument = false): Walk {
  return {
    isDocument,
    levels,
    events,
    at: from,
    end: 0,
    starts: [-1, 0, 0, 0],
    phase: VALUE,
    depth: 0,
    kinds: 0,
    spilled: null,
    number: 0,
    keyAt: 0,
  };
}

/** A walk through a whole document, which starts at `from` (after a byte order mark). */
export function startDocument(from: number, levels = 0, events = NO_EVENTS): Walk {
  return startWalk(from, levels, events, true);
}

/** Whether the value that the walk has come to at depth 0 is an object. */
export function isObject(walk: Walk, bytes: Uint8Array): boolean {
  return bytes[walk.starts[0]!] === OPEN_BRACE;
}

/**
 * Continues up to `stop`. True: the value continues there, so that more bytes, or `endWalk`, are due. False: it has
 * ended, or is faulty; `walk.end` says where. `bytes` may be another buffer than before as long as the bytes from
 * `walk.at` on are in it.
 */
export function advance(walk: Walk, bytes: Uint8Array, stop: number): boolean {
  const { levels, events, starts } = walk;
  let { at, phase, depth, kinds } = walk;
  if (phase === DONE) return false;
  for (;;) {
    if (phase <= IN_KEY) {
      if (phase !== IN_KEY) {
        if (at < stop && bytes[at]! <= SPACE) at = skipSpace(bytes, at, stop);
        if (at >= stop) return pause(walk, at, phase, depth, kinds);
        if (bytes[at] !== QUOTE) {
          if (bytes[at] !== CLOSE_BRACE || phase !== FIRST_KEY) return over(walk, -1 - at);
          phase = CLOSE;
        } else {
          if (depth <= levels) walk.keyAt = at;
          at++;
        }
      }
      if (phase !== CLOSE) {
        const end = skipString(bytes, at, stop);
        if (end < 0) return cut(walk, end, IN_KEY, depth, kinds);
        at = end;
        if (depth <= levels) events.key(walk.keyAt, depth);
        phase = COLON_DUE;
      }
    }
    if (phase === COLON_DUE) {
      if (at < stop && bytes[at]! <= SPACE) at = skipSpace(bytes, at, stop);
      if (at >= stop) return pause(walk, at, phase, depth, kinds);
      if (bytes[at] !== COLON) return over(walk, -1 - at);
      at++;
      phase = VALUE;
    }
    if (phase <= VALUE) {
      if (at < stop && bytes[at]! <= SPACE && (depth > 0 || walk.isDocument)) at = skipSpace(bytes, at, stop);
      if (at >= stop) return pause(walk, at, phase, depth, kinds);
      const byte = bytes[at]!;
      if (depth <= levels) starts[depth] = at;
      if (byte === QUOTE) {
        const end = skipString(bytes, at + 1, stop);
        if (end < 0) return cut(walk, end, IN_STRING, depth, kinds);
        at = end;
        phase = ENDED;
      } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
        at++;
        if (depth > 0 && (depth & 31) === 0) {
          walk.spilled ??= [];
          walk.spilled[(depth >>> 5) - 1] = kinds;
          kinds = 0;
        }
        depth++;
        kinds = (kinds << 1) | (byte === OPEN_BRACE ? 1 : 0);
        phase = byte === OPEN_BRACE ? FIRST_KEY : FIRST_VALUE;
        continue;
      } else if (byte === MINUS || (byte >= 0x30 && byte <= 0x39)) {
        walk.number = NUMBER_STARTS;
        phase = IN_NUMBER;
      } else if (byte === CLOSE_BRACKET && phase === FIRST_VALUE) {
        phase = CLOSE;
      } else {
        const end = skipWord(bytes, at, stop);
        if (end === RAN_OUT) return pause(walk, at, phase, depth, kinds);
        if (end < 0) return over(walk, end);
        at = end;
        phase = ENDED;
      }
    } else if (phase === IN_STRING) {
      const end = skipString(bytes, at, stop);
      if (end < 0) return cut(walk, end, IN_STRING, depth, kinds);
      at = end;
      phase = ENDED;
    }
    if (phase === IN_NUMBER) {
      at = passNumber(bytes, at, stop, walk);
      if (at < 0) return over(walk, at);
      if (at >= stop) return pause(walk, at, phase, depth, kinds);
      phase = ENDED;
    }

    // A value has ended: close what ends with it, up to the next comma.
    for (;;) {
      if (phase === CLOSE) {
        at++;
        depth--;
        kinds = depth > 0 && (depth & 31) === 0 ? walk.spilled![(depth >>> 5) - 1]! : kinds >>> 1;
      }
      if (phase < NEXT) {
        if (depth === 0) {
          if (!walk.isDocument) return over(walk, at);
          walk.end = at;
          phase = TAIL;
        } else {
          if (depth <= levels) events.value(starts[depth]!, at, depth);
          phase = NEXT;
        }
      }
      if (at < stop && bytes[at]! <= SPACE) at = skipSpace(bytes, at, stop);
      if (at >= stop) return pause(walk, at, phase, depth, kinds);
      if (phase === TAIL) return over(walk, -1 - at);
      const byte = bytes[at]!;
      if (byte === COMMA) {
        at++;
        phase = (kinds & 1) === 1 ? KEY : VALUE;
        break;
      }
      if (byte !== ((kinds & 1) === 1 ? CLOSE_BRACE : CLOSE_BRACKET)) return over(walk, -1 - at);
      phase = CLOSE;
    }
  }
}

/** `end` is a fault of skipString, or tells that it ran out of bytes. */
function cut(walk: Walk, end: number, phase: number, depth: number, kinds: number): boolean {
  return end > RAN_OUT ? over(walk, end) : pause(walk, RAN_OUT - 1 - end, phase, depth, kinds);
}

function pause(walk: Walk, at: number, phase: number, depth: number, kinds: number): boolean {
  walk.at = at;
  walk.phase = phase;
  walk.depth = depth;
  walk.kinds = kinds;
  return true;
}

function over(walk: Walk, end: number): boolean {
  walk.phase = DONE;
  walk.end = end;
  return false;
}

/**
 * Returns the walk's end, or its fault, when no bytes come after the first `length` ones.
 *
 * @internal Exported for its tests.
 */
export function endWalk(walk: Walk, length: number): number {
  if (walk.phase === DONE || walk.phase === TAIL) return walk.end;
  const isWhole = walk.phase === IN_NUMBER && walk.depth === 0 && isWholeNumber(walk.number);
  over(walk, isWhole ? length : -1 - length);
  return walk.end;
}

/** Walks to the end in one go: for bytes whose number is bounded by a few steps. Returns the end or the fault. */
export function walkAtOnce(walk: Walk, bytes: Uint8Array): number {
  advance(walk, bytes, bytes.length);
  return endWalk(walk, bytes.length);
}

/** The same in steps. */
export function* walkInSteps(walk: Walk, bytes: Uint8Array): Steps<number> {
  for (let stop = walk.at; stop < bytes.length; ) {
    stop = Math.min(bytes.length, stop + STEP_BYTES);
    if (!advance(walk, bytes, stop)) break;
    yield;
  }
  return endWalk(walk, bytes.length);
}
