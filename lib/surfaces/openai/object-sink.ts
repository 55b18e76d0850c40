import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';

/** An object that is written piece by piece while something else is read; it begins with its first byte. */
export interface ObjectSink {
  ref: PayloadRef;
  /** Resolves when more may be written; rejects with the store's error once it has failed. */
  write(pieces: readonly Buffer[]): Promise<void>;
  /** Resolves when all of it is durable; its length, 0 when nothing was written and no object exists. */
  end(): Promise<number>;
  /** Abandons it: nothing stays behind, except what the store has to remove. Never rejects. */
  abort(): Promise<void>;
}

/** Pieces are joined to about this size: lines are small, and each chunk costs the store a turn. */
const CHUNK_BYTES = 256 * 1024;

/** A sink for one object. Two of them can be fed from one loop, which no `writeStream` of its own could be. */
export function objectSink(payloads: Pick<PayloadStore, 'writeStream'>, ref: PayloadRef): ObjectSink {
  let pending: Buffer[] = [];
  let bytes = 0;
  let written: Promise<number> | null = null;
  let failure: { error: unknown } | null = null;
  let ended = false;
  let aborted: Error | null = null;
  // The writer waits for `more`, the feeder for `room`; each is settled by the other.
  let chunks: Buffer[] = [];
  let more = Promise.withResolvers<void>();
  let room = Promise.withResolvers<void>();

  async function* source(): AsyncGenerator<Buffer> {
    for (;;) {
      if (aborted) throw aborted;
      if (chunks.length > 0) {
        const taken = chunks;
        chunks = [];
        room.resolve();
        yield* taken;
      } else if (ended) return;
      else {
        await more.promise;
        more = Promise.withResolvers();
      }
    }
  }
  const start = () => {
    const writing = payloads.writeStream(ref, source());
    writing.catch((error) => {
      failure = { error };
      room.resolve();
    });
    return writing;
  };
  const flush = async () => {
    while (chunks.length > 0 && !failure) {
      await room.promise;
      room = Promise.withResolvers();
    }
    if (failure) throw failure.error;
    chunks = joined(pending);
    pending = [];
    bytes = 0;
    written ??= start();
    more.resolve();
  };

  return {
    ref,
    async write(pieces) {
      for (const piece of pieces) {
        pending.push(piece);
        bytes += piece.length;
      }
      if (bytes >= CHUNK_BYTES) await flush();
    },
    async end() {
      if (bytes > 0) await flush();
      ended = true;
      more.resolve();
      return (await written) ?? 0;
    },
    async abort() {
      aborted = new Error('given up');
      more.resolve();
      await written?.catch(() => {});
    },
  };
}

/** Small pieces in one, large ones as they are: a copy of an answer of 64 MiB is not needed. */
function joined(pieces: readonly Buffer[]): Buffer[] {
  const chunks: Buffer[] = [];
  let small: Buffer[] = [];
  for (const piece of pieces) {
    if (piece.length < CHUNK_BYTES) {
      small.push(piece);
      continue;
    }
    chunks.push(Buffer.concat(small), piece);
    small = [];
  }
  chunks.push(Buffer.concat(small));
  return chunks;
}
