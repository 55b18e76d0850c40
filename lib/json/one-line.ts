import { Buffer } from 'node:buffer';

const LF = 0x0a;
const CR = 0x0d;
const SPACE = 0x20;

/**
 * JSON whose line ends are spaces: a line of JSONL has none of its own. It is the one thing that is ever changed in an
 * answer, and changes nothing of what it means: within strings JSON allows no raw LF or CR, so each is white space
 * between tokens. An answer without any, which is nearly every one, is given as it is.
 */
export function onOneLine(json: Buffer): Buffer {
  if (!json.includes(LF) && !json.includes(CR)) return json;
  const line = Buffer.from(json);
  for (let at = 0; at < line.length; at++) if (line[at] === LF || line[at] === CR) line[at] = SPACE;
  return line;
}
