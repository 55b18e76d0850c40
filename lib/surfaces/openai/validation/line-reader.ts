import { Buffer } from 'node:buffer';
import { type Reserve, reserveFor } from '../../../base/body-budget.ts';
import { lineScanner } from '../../../json/lines.ts';

/** A line that is not blank. */
export interface LineBytes {
  /**
   * Without white space around; null when the line is longer than the reader takes. They are the reader's own memory, good
   * until the next line is requested.
   */
  bytes: Buffer | null;
  offset: number;
  line: number;
}

/** Splits JSONL that arrives in pieces, with one line in memory at a time. */
export interface LineReader {
  push(chunk: Buffer): Iterable<LineBytes>;
  end(): Iterable<LineBytes>;
}

const LF = 0x0a;
/** White space around a line of the largest size. */
const SLACK_BYTES = 1024;

/**
 * A reader at the start of a file; lines as `lineScanner` finds them, of at most `maxBytes`. A line that comes whole in one
 * chunk is not copied. One that does not is put together in a buffer of its own, which has the largest size from the
 * start. Its memory is touched only as far as lines reach, and joining pieces would occupy up to twice a line's size.
 * `reserve` counts it.
 */
export function lineReader(maxBytes: number, reserve: Reserve = () => {}): LineReader {
  const scanner = lineScanner();
  let buffer: Buffer | null = null;
  let base = 0; // absolute offset of the current chunk
  let keptAt = 0; // absolute offset of the first byte kept of the line that has begun
  let kept = 0;
  let overflowed = false;

  const keep = (bytes: Buffer) => {
    buffer ??= Buffer.allocUnsafeSlow(maxBytes + SLACK_BYTES);
    if (kept + bytes.length > buffer.length) overflowed = true;
    if (overflowed) return;
    reserve(reserveFor(kept + bytes.length, maxBytes));
    bytes.copy(buffer, kept);
    kept += bytes.length;
  };
  const keptLine = (offset: number, length: number) =>
    overflowed || buffer === null ? null : buffer.subarray(offset - keptAt, offset - keptAt + length);

  const lineOf = (bytes: Buffer | null, offset: number, line: number): LineBytes => ({ bytes, offset, line });

  return {
    *push(chunk) {
      const found: LineBytes[] = [];
      scanner.push(chunk, (offset, length, line) => {
        if (length > maxBytes) found.push(lineOf(null, offset, line));
        else if (offset >= base) {
          found.push(lineOf(chunk.subarray(offset - base, offset - base + length), offset, line));
        } else {
          if (offset + length > base) keep(chunk.subarray(0, offset + length - base));
          found.push(lineOf(keptLine(offset, length), offset, line));
        }
      });
      yield* found;
      const last = chunk.lastIndexOf(LF);
      if (last >= 0) {
        keptAt = base + last + 1;
        kept = 0;
        overflowed = false;
      }
      keep(chunk.subarray(last + 1));
      base += chunk.length;
    },
    end() {
      const found: LineBytes[] = [];
      scanner.end((offset, length, line) => {
        found.push(lineOf(length > maxBytes ? null : keptLine(offset, length), offset, line));
      });
      return found;
    },
  };
}
