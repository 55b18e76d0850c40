import { Buffer } from 'node:buffer';

const FIRST_BYTES = 4 * 1024;
/** A buffer has no room for more than this before so much has arrived: the announced length of an answer is only a claim. */
const TRUSTED_BYTES = 1024 * 1024;

/** Bytes that arrive in pieces, in one buffer of their own: kept as pieces, an answer in 1-byte chunks takes 400 times its size. */
export interface GrowingBuffer {
  append(piece: Buffer): void;
  size(): number;
  /** What has arrived, without a copy. Nothing is appended after that. */
  take(): Buffer;
}

/**
 * An empty one. It grows to the `expected` size if that is known, else it doubles, up to `most`, which the caller keeps to.
 * Memory that is not written yet costs only addresses.
 */
export function growingBuffer(expected: number, most: number): GrowingBuffer {
  let buffer = Buffer.allocUnsafeSlow(
    Math.min(most, expected > 0 && expected <= TRUSTED_BYTES ? expected : FIRST_BYTES),
  );
  let size = 0;
  return {
    append(piece) {
      const needed = size + piece.length;
      if (needed > buffer.length) {
        const isTrusted = expected >= needed && (expected <= TRUSTED_BYTES || needed >= TRUSTED_BYTES);
        const grown = Buffer.allocUnsafeSlow(Math.min(most, isTrusted ? expected : 2 * needed));
        buffer.copy(grown, 0, 0, size);
        freeAtOnce(buffer);
        buffer = grown;
      }
      piece.copy(buffer, size);
      size = needed;
    },
    size: () => size,
    take: () => buffer.subarray(0, size),
  };
}

/**
 * Frees the memory of a buffer that nobody reads any more. V8 collects buffers this large late: three of 64 MiB stood beside
 * what the budget counts. Only memory that is the buffer's alone; it reads as empty from then on.
 */
export function freeAtOnce({ buffer, byteOffset }: Buffer): void {
  if (buffer instanceof ArrayBuffer && byteOffset === 0) buffer.transfer(0);
}
