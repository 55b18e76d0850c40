import { Buffer } from 'node:buffer';
import type { Steps } from './turns.ts';

const FIRST_BYTES = 4 * 1024;
/**
 * From here on more memory is added in segments: to copy 32 MiB into a larger buffer holds the event loop for 20 ms. So much
 * must have arrived, too, before there is room for an announced length, which is only a claim.
 */
const SEGMENT_BYTES = 1024 * 1024;

/** Bytes that arrive in pieces, in memory of their own: kept as pieces, an answer in 1-byte chunks takes 400 times its size. */
export interface GrowingBuffer {
  append(piece: Buffer): void;
  size(): number;
  /** The bytes so far if they stand in one piece of memory, else null. Nothing is appended after that. */
  whole(): Buffer | null;
  /** Puts together what has arrived. A part's memory is freed as soon as it is copied. */
  join(): Steps<Buffer>;
}

/** An empty one. `expected` is the size as far as it is known, else 0. Memory that is not written yet costs only addresses. */
export function growingBuffer(expected: number): GrowingBuffer {
  const segments: Buffer[] = [];
  let last = Buffer.allocUnsafeSlow(expected > 0 && expected <= SEGMENT_BYTES ? expected : FIRST_BYTES);
  let filled = 0; // of the last segment
  let size = 0;

  const makeRoom = () => {
    if (segments.length === 0 && filled < SEGMENT_BYTES) return growTo(Math.min(SEGMENT_BYTES, 4 * filled));
    if (segments.length === 0 && expected > size) return growTo(expected);
    segments.push(last);
    last = Buffer.allocUnsafeSlow(SEGMENT_BYTES);
    filled = 0;
  };
  const growTo = (bytes: number) => {
    const grown = Buffer.allocUnsafeSlow(bytes);
    last.copy(grown, 0, 0, filled);
    freeAtOnce(last);
    last = grown;
  };

  return {
    append(piece) {
      for (let at = 0; at < piece.length; ) {
        if (filled === last.length) makeRoom();
        const copied = piece.copy(last, filled, at);
        at += copied;
        filled += copied;
        size += copied;
      }
    },
    size: () => size,
    whole: () => (segments.length === 0 ? last.subarray(0, size) : null),
    *join() {
      const joined = Buffer.allocUnsafeSlow(size);
      segments.push(last.subarray(0, filled));
      let at = 0;
      for (const segment of segments) {
        at += segment.copy(joined, at);
        freeAtOnce(segment);
        yield;
      }
      return joined;
    },
  };
}

/** Below this a buffer may be a part of a pool, and is left to the garbage collector. */
const LARGE_BYTES = 256 * 1024;

/** The same for a buffer whose origin is not known here. */
export function freeIfLarge(buffer: Buffer): void {
  if (buffer.length >= LARGE_BYTES) freeAtOnce(buffer);
}

/**
 * Frees the memory of a buffer that nobody reads any more. V8 collects buffers this large late: three of 64 MiB stood beside
 * what the budget counts. Only memory that is the buffer's alone; it reads as empty from then on.
 */
export function freeAtOnce({ buffer, byteOffset }: Buffer): void {
  if (buffer instanceof ArrayBuffer && byteOffset === 0) buffer.transfer(0);
}
