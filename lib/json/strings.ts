import type { Buffer } from 'node:buffer';
import { STEP_BYTES } from '../base/turns.ts';

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const LOWER_U = 0x75;

/** The offset behind the character or escape at `at` of a valid string. */
function nextChar(bytes: Buffer, at: number): number {
  const byte = bytes[at]!;
  if (byte === BACKSLASH) return at + (bytes[at + 1] === LOWER_U ? 6 : 2);
  return at + (byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4);
}

/** The text of the part `[start, end)` of a valid string, which cuts no character and no escape. */
function decoded(bytes: Buffer, start: number, end: number): string {
  const text = bytes.toString('utf8', start, end);
  return text.includes('\\') ? JSON.parse(`"${text}"`) : text;
}

/** The first `maxChars` characters of the valid JSON string whose quote stands at `start`, or all of them. */
export function stringStart(bytes: Buffer, start: number, maxChars: number): string {
  let at = start + 1;
  for (let chars = 0; chars < maxChars && bytes[at] !== QUOTE; chars++) at = nextChar(bytes, at);
  return decoded(bytes, start + 1, at);
}

/** The text of a valid JSON string, quotes included, in pieces of one step each. A pair of escaped surrogates may be cut. */
export function* stringPieces(json: Buffer): Generator<string, void, void> {
  const end = json.length - 1;
  for (let from = 1; from < end; ) {
    const stop = Math.min(end, from + STEP_BYTES);
    let to = from;
    while (to < stop) to = nextChar(json, to);
    yield decoded(json, from, to);
    from = to;
  }
}
