import type { Buffer } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import { isObject, startDocument, type Walk, type WalkEvents, walkAtOnce, walkInSteps } from './walk.ts';

/** Where a value stands in its buffer: `end` is exclusive, white space around it is outside. */
export interface Span {
  start: number;
  end: number;
}

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const LOWER_U = 0x75;

/**
 * Most members that an object of a caller's may have where we read it: no API takes a thousandth of them. An object
 * with more is refused with this reason. An answer of an upstream may have more.
 */
export const MAX_MEMBERS = 100_000;

/** The character of each letter of a short escape; 0 for no escape. */
const SHORT_ESCAPES = new Uint8Array(256);
for (const [letter, char] of Object.entries({
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
  '"': '"',
  '\\': '\\',
  '/': '/',
})) {
  SHORT_ESCAPES[letter.charCodeAt(0)] = char.charCodeAt(0);
}

/**
 * Whether the valid key that starts with the quote at `keyAt` is `name` (ASCII). An escaped key (`requ\u0065sts`) counts
 * as what it means. It is decoded character by character, up to the first one that differs: JSON.parse of every escaped
 * key took 16 s for 32 MiB of them.
 */
export function keyIs(bytes: Uint8Array, keyAt: number, name: string): boolean {
  let at = keyAt + 1;
  for (let i = 0; i < name.length; i++) {
    let code = bytes[at++]!;
    if (code === BACKSLASH) {
      const letter = bytes[at++]!;
      code = SHORT_ESCAPES[letter]!;
      if (letter === LOWER_U) {
        code = hexAt(bytes, at);
        at += 4;
      }
    } else if (code === QUOTE) return false; // an escaped quote is not an end
    if (code !== name.charCodeAt(i)) return false;
  }
  return bytes[at] === QUOTE;
}

/** The number that four hexadecimal digits stand for. */
function hexAt(bytes: Uint8Array, from: number): number {
  let code = 0;
  for (let at = from; at < from + 4; at++) {
    const byte = bytes[at]!;
    code = (code << 4) | (byte <= 0x39 ? byte - 0x30 : (byte | 0x20) - 0x57);
  }
  return code;
}

/** The one of `names` that the valid key at `keyAt` is. */
export function nameOf<Name extends string>(
  bytes: Uint8Array,
  keyAt: number,
  names: readonly Name[],
): Name | undefined {
  for (let i = 0; i < names.length; i++) if (keyIs(bytes, keyAt, names[i]!)) return names[i];
  return undefined;
}

/** What `findMembers` finds: `fault` as in scan.ts. */
export type Members =
  | { kind: 'object'; members: Map<string, Span> }
  | { kind: 'not_object' }
  | { kind: 'invalid'; fault: number };

/**
 * Validates a whole JSON document and returns the spans of the top-level members that are called for, the last of
 * duplicates; absent ones are absent from the map. Only these cost memory, however many members there are. The caller
 * has checked `isUtf8`. `from` is where the document starts (after a byte order mark). In one go, so only for documents
 * whose size is bounded.
 */
export function findMembers(bytes: Buffer, names: readonly string[], from = 0): Members {
  const members = new Map<string, Span>();
  const walk = startDocument(from, 1, memberEvents(bytes, names, members));
  return foundBy(walk, walkAtOnce(walk, bytes), bytes, members);
}

/** The same in steps. */
export function* findMembersInSteps(bytes: Buffer, names: readonly string[], from = 0): Steps<Members> {
  const members = new Map<string, Span>();
  const walk = startDocument(from, 1, memberEvents(bytes, names, members));
  return foundBy(walk, yield* walkInSteps(walk, bytes), bytes, members);
}

/**
 * The error in a JSON document of an upstream, without the white space around: Gemini puts it into a list of one, and then
 * it is the element. Null if the document is not JSON. The caller has checked that it is UTF-8.
 */
export function* errorDocument(bytes: Buffer, from = 0): Steps<Span | null> {
  let elements = 0;
  let hasError = false;
  let last: Span = { start: 0, end: 0 };
  const walk: Walk = startDocument(from, 2, {
    key(keyAt, depth) {
      if (depth === 2) hasError ||= bytes[walk.starts[1]!] === OPEN_BRACE && keyIs(bytes, keyAt, 'error');
    },
    value(start, end, depth) {
      if (depth > 1) return;
      elements++;
      last = { start, end };
    },
  });
  const end = yield* walkInSteps(walk, bytes);
  if (end < 0) return null;
  const isWrapped = bytes[walk.starts[0]!] === OPEN_BRACKET && elements === 1 && hasError;
  return isWrapped ? last : { start: walk.starts[0]!, end };
}

function memberEvents(bytes: Buffer, names: readonly string[], members: Map<string, Span>): WalkEvents {
  let name: string | undefined;
  return {
    key(keyAt) {
      name = nameOf(bytes, keyAt, names);
    },
    value(start, end) {
      if (name !== undefined) members.set(name, { start, end });
    },
  };
}

function foundBy(walk: Walk, end: number, bytes: Buffer, members: Map<string, Span>): Members {
  if (end < 0) return { kind: 'invalid', fault: end };
  return isObject(walk, bytes) ? { kind: 'object', members } : { kind: 'not_object' };
}
