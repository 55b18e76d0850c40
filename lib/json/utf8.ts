import { Buffer, isUtf8 } from 'node:buffer';
import { piecesOf, type Steps } from '../base/turns.ts';

/** Checks that bytes which come in pieces are UTF-8 (RFC 3629: no overlong forms, no surrogates). */
export interface Utf8Check {
  /** False as soon as the bytes so far cannot be the start of UTF-8; from then on its answers mean nothing. */
  push(chunk: Uint8Array): boolean;
  /** False when the last character is cut. */
  end(): boolean;
}

/** A character takes four bytes at most. */
const LONGEST = 4;
const EMPTY = new Uint8Array(0);

/** A check at the start of a text. All but a cut character's few bytes is checked in place, at memory speed. */
export function utf8Check(): Utf8Check {
  let cut: Uint8Array = EMPTY;
  return {
    push(chunk) {
      let from = 0;
      if (cut.length > 0) {
        const missing = lengthOf(cut[0]!) - cut.length;
        const joined = Buffer.concat([cut, chunk.subarray(0, missing)]);
        if (chunk.length < missing) {
          cut = joined;
          return chunk.every(goesOn);
        }
        if (!isUtf8(joined)) return false;
        from = missing;
      }
      const until = lastWhole(chunk, from);
      // A copy: the piece itself may be used again by its owner.
      cut = until === chunk.length ? EMPTY : Uint8Array.prototype.slice.call(chunk, until);
      return isUtf8(from === 0 && until === chunk.length ? chunk : chunk.subarray(from, until));
    },
    end: () => cut.length === 0,
  };
}

/** Bytes of the character that starts with this one; 1 also for what starts none, which then fails where it stands. */
function lengthOf(first: number): number {
  if (first < 0xc2 || first > 0xf4) return 1;
  return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}

function goesOn(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}

/** Where the last character begins if it is cut, else the end. */
function lastWhole(chunk: Uint8Array, from: number): number {
  for (let at = chunk.length - 1; at >= from && at > chunk.length - LONGEST; at--) {
    const byte = chunk[at]!;
    if (goesOn(byte)) continue;
    return at + lengthOf(byte) > chunk.length ? at : chunk.length;
  }
  return chunk.length;
}

/** Checks a whole buffer, as `isUtf8` does, in steps. */
export function* isUtf8InSteps(bytes: Buffer): Steps<boolean> {
  const check = utf8Check();
  for (const piece of piecesOf(bytes)) {
    if (!check.push(piece)) return false;
    yield;
  }
  return check.end();
}
