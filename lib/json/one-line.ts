import { Buffer } from 'node:buffer';
import { piecesOf, type Steps } from '../base/turns.ts';

const LF = 0x0a;
const CR = 0x0d;
const SPACE = 0x20;

/**
 * JSON whose line ends are spaces: a line of JSONL has none of its own. It is the one thing that is ever changed in an
 * answer, and changes nothing of what it means. Within strings JSON allows no raw LF or CR, so each is white space
 * between tokens. An answer without any, which is nearly every one, is returned as it is.
 */
export function* onOneLine(json: Buffer): Steps<Buffer> {
  if (!(yield* hasLineEnds(json))) return json;
  const line = Buffer.allocUnsafeSlow(json.length);
  let at = 0;
  for (const piece of piecesOf(json)) {
    for (const byte of piece) line[at++] = byte === LF || byte === CR ? SPACE : byte;
    yield;
  }
  return line;
}

function* hasLineEnds(json: Buffer): Steps<boolean> {
  for (const piece of piecesOf(json)) {
    if (piece.includes(LF) || piece.includes(CR)) return true;
    yield;
  }
  return false;
}
