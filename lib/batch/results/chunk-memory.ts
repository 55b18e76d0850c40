import { Buffer } from 'node:buffer';
import { CHUNK_BYTES } from './block.ts';

/** Chunks of CHUNK_BYTES that are used again and again. */
export interface ChunkMemory {
  take(): Buffer;
  /** Takes back what was taken, or a part of it that nobody needs any more; anything else is left alone. */
  give(chunk: Buffer): void;
}

/**
 * The memory of one stream. A chunk that is not returned, or exceeds `keepBytes`, is garbage like any other. The
 * reason: new memory has to be cleared by the system, and its weight sets off major collections; together that was a
 * quarter of the CPU of a stream.
 */
export function chunkMemory(keepBytes: () => number = () => Number.POSITIVE_INFINITY): ChunkMemory {
  const free: Buffer[] = [];
  const taken = new WeakMap<ArrayBufferLike, Buffer>();
  return {
    take() {
      const chunk = free.pop() ?? Buffer.allocUnsafeSlow(CHUNK_BYTES);
      taken.set(chunk.buffer, chunk);
      return chunk;
    },
    give({ buffer }) {
      const chunk = taken.get(buffer);
      if (chunk === undefined) return;
      taken.delete(buffer);
      if ((free.length + 1) * CHUNK_BYTES > keepBytes()) return;
      free.push(chunk);
    },
  };
}
