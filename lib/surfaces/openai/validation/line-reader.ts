import { Buffer } from 'node:buffer';
import { lineScanner } from '../../../json/lines.ts';

/**
 * Gets the bytes of a line that is not blank, without white space around; null when it is longer than the reader takes.
 * They are the reader's own memory, good until the call returns.
 */
export type OnLineBytes = (bytes: Buffer | null, offset: number, line: number) => void;

/** Splits JSONL that arrives in pieces, with one line in memory at a time. */
export interface LineReader {
  push(chunk: Buffer, onLine: OnLineBytes): void;
  end(onLine: OnLineBytes): void;
}

const LF = 0x0a;
/** White space around a line of the largest size. */
const SLACK_BYTES = 1024;

/**
 * A reader at the start of a file; lines as `lineScanner` finds them, of at most `maxBytes`. A line that comes whole in one
 * chunk is not copied. One that does not is put together in a buffer of its own, which has the largest size from the
 * start: its memory is touched only as far as lines reach, and joining pieces would take up to twice a line's size.
 */
export function lineReader(maxBytes: number): LineReader {
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
    bytes.copy(buffer, kept);
    kept += bytes.length;
  };
  const keptLine = (offset: number, length: number) =>
    overflowed || buffer === null ? null : buffer.subarray(offset - keptAt, offset - keptAt + length);

  return {
    push(chunk, onLine) {
      scanner.push(chunk, (offset, length, line) => {
        if (length > maxBytes) return onLine(null, offset, line);
        if (offset >= base) return onLine(chunk.subarray(offset - base, offset - base + length), offset, line);
        if (offset + length > base) keep(chunk.subarray(0, offset + length - base));
        onLine(keptLine(offset, length), offset, line);
      });
      const last = chunk.lastIndexOf(LF);
      if (last >= 0) {
        keptAt = base + last + 1;
        kept = 0;
        overflowed = false;
      }
      keep(chunk.subarray(last + 1));
      base += chunk.length;
    },
    end(onLine) {
      scanner.end((offset, length, line) => {
        onLine(length > maxBytes ? null : keptLine(offset, length), offset, line);
      });
    },
  };
}
