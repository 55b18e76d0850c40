/**
 * The tokens of JSON in bytes, as JSON.parse accepts them; walk.ts puts them together. Nothing is built. The caller checks
 * that the bytes are UTF-8.
 *
 * All functions take the offset to start at and return the offset after what they passed, or, for a fault at offset n, the
 * negative number -1 - n. An error object or a tuple per value would cost more than the scan itself. They stop at `stop`,
 * where the bytes may continue.
 */

/** Below this the number tells of no fault but of `stop`: RAN_OUT - 1 - n, to continue at offset n. Buffers are smaller. */
export const RAN_OUT = -(2 ** 30);

const TAB = 0x09;
const LF = 0x0a;
const CR = 0x0d;
const SPACE = 0x20;
const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const LOWER_U = 0x75;

/** 1 for the bytes that may stand in a string as they are: not a quote, a backslash or a control character. */
const PLAIN = new Uint8Array(256).fill(1, SPACE);
PLAIN[QUOTE] = 0;
PLAIN[BACKSLASH] = 0;

/** 1 for what may follow a backslash, `u` aside: " \ / b f n r t */
const ESCAPED = new Uint8Array(256);
for (const char of '"\\/bfnrt') ESCAPED[char.charCodeAt(0)] = 1;

const HEX = new Uint8Array(256);
for (const char of '0123456789abcdefABCDEF') HEX[char.charCodeAt(0)] = 1;

/** Passes the four white space characters of JSON; never a fault. */
export function skipSpace(bytes: Uint8Array, from: number, stop = bytes.length): number {
  let at = from;
  while (at < stop) {
    const byte = bytes[at]!;
    if (byte !== SPACE && byte !== LF && byte !== CR && byte !== TAB) break;
    at++;
  }
  return at;
}

/** Bytes of a run in a string that are read one by one before the view for reading words pays for itself (70 ns). */
const WORDS_FROM = 128;

/**
 * Passes plain string bytes four at a time (2.9 GB/s against 1.2: images as base64) and stops at most four before the
 * first other byte. The terms are the known test for a word that holds a byte below n, or, after the xor, a zero byte.
 */
function skipPlainWords(bytes: Uint8Array, from: number, stop: number): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, stop);
  const last = stop - 4;
  let at = from;
  while (at <= last) {
    const word = view.getInt32(at, true);
    const quote = word ^ 0x22222222;
    const backslash = word ^ 0x5c5c5c5c;
    const control = (word - 0x20202020) & ~word;
    if ((control | ((quote - 0x01010101) & ~quote) | ((backslash - 0x01010101) & ~backslash)) & 0x80808080) break;
    at += 4;
  }
  return at;
}

/**
 * Passes a string to the offset after its closing quote; `from` is any character in it. Where it runs out of bytes, an
 * escape that is cut counts as not passed.
 */
export function skipString(bytes: Uint8Array, from: number, stop: number): number {
  let at = from;
  for (;;) {
    const near = Math.min(at + WORDS_FROM, stop);
    while (at < near && PLAIN[bytes[at]!] === 1) at++;
    if (at === near) {
      at = skipPlainWords(bytes, at, stop);
      while (at < stop && PLAIN[bytes[at]!] === 1) at++;
    }
    if (at >= stop) return RAN_OUT - 1 - at;
    const byte = bytes[at]!;
    if (byte === QUOTE) return at + 1;
    if (byte !== BACKSLASH) return -1 - at;
    if (at + 1 >= stop) return RAN_OUT - 1 - at;
    const next = bytes[at + 1]!;
    if (ESCAPED[next] === 1) {
      at += 2;
    } else if (next === LOWER_U) {
      for (let i = at + 2; i < at + 6; i++) {
        if (i >= stop) return RAN_OUT - 1 - at;
        if (HEX[bytes[i]!] !== 1) return -1 - i;
      }
      at += 6;
    } else {
      return -2 - at;
    }
  }
}

/** The kinds of bytes in numbers: 0 for all others. */
const NUMBER_CLASS = new Uint8Array(256);
for (const [i, chars] of ['0', '123456789', '-', '+', '.', 'eE'].entries()) {
  for (const char of chars) NUMBER_CLASS[char.charCodeAt(0)] = i + 1;
}

/**
 * The states of a number, as rows of eight: the next state for each class of byte, 0 where the number ends.
 *   1 starts, 2 after the minus, 3 zero, 4 integer, 5 after the point, 6 fraction, 7 after the e, 8 after its sign, 9 exponent
 */
const NUMBER_STATES = new Uint8Array([
  ...[0, 0, 0, 0, 0, 0, 0, 0],
  ...[0, 3, 4, 2, 0, 0, 0, 0],
  ...[0, 3, 4, 0, 0, 0, 0, 0],
  ...[0, 0, 0, 0, 0, 5, 7, 0],
  ...[0, 4, 4, 0, 0, 5, 7, 0],
  ...[0, 6, 6, 0, 0, 0, 0, 0],
  ...[0, 6, 6, 0, 0, 0, 7, 0],
  ...[0, 9, 9, 8, 8, 0, 0, 0],
  ...[0, 9, 9, 0, 0, 0, 0, 0],
  ...[0, 9, 9, 0, 0, 0, 0, 0],
]);

/** The state of a number of which nothing is passed. */
export const NUMBER_STARTS = 1;

/** Whether a number may end in this state. */
export function isWholeNumber(state: number): boolean {
  return state === 3 || state === 4 || state === 6 || state === 9;
}

/** Passes a number or the rest of one, and keeps its state. At `stop` it may continue. */
export function passNumber(bytes: Uint8Array, from: number, stop: number, keep: { number: number }): number {
  let state = keep.number;
  for (let at = from; at < stop; at++) {
    const next = NUMBER_STATES[(state << 3) | NUMBER_CLASS[bytes[at]!]!]!;
    if (next === 0) return isWholeNumber(state) ? at : -1 - at;
    state = next;
  }
  keep.number = state;
  return stop;
}

const WORDS = ['true', 'false', 'null'].map((word) => Uint8Array.from(word, (char) => char.charCodeAt(0)));

/** Passes `true`, `false` or `null`. One that `stop` cuts counts as not passed: RAN_OUT. */
export function skipWord(bytes: Uint8Array, at: number, stop: number): number {
  const word = WORDS.find((one) => one[0] === bytes[at]);
  if (word === undefined) return -1 - at;
  for (let i = 1; i < word.length; i++) {
    if (at + i >= stop) return RAN_OUT;
    if (bytes[at + i] !== word[i]) return -1 - (at + i);
  }
  return at + word.length;
}

/** 3 when the buffer starts with a UTF-8 byte order mark, else 0. JSON.parse refuses one; a decoder strips it before. */
export function bomLength(bytes: Uint8Array): 0 | 3 {
  return bytes.length >= 3 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? 3 : 0;
}

/** The sentence for a negative result. It names the offset and never quotes the payload. */
export function faultText(bytes: Uint8Array, fault: number): string {
  const offset = -1 - fault;
  return offset >= bytes.length ? `unexpected end at offset ${bytes.length}` : `unexpected byte at offset ${offset}`;
}
