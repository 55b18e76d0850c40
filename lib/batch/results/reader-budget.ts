import { ApiError } from '../../base/errors.ts';

/** The part of one stream in the memory of all of them. */
export interface StreamShare {
  /** Response bytes that its next load may hold. Less when many streams are open. */
  loadBytes(): number;
}

/** The streams of answers that are open in this process: results of all surfaces, and contents of files. */
export interface ReaderBudget {
  /**
   * The stream that `make` returns, counted from its first byte to its end. Throws 429 `too_many_streams` at the first byte
   * when the owner has as many as it may.
   */
  stream(owner: string, make: (share: StreamShare) => AsyncIterable<Buffer>): AsyncGenerator<Buffer>;
  /** Bytes that are given to streams at present. */
  held(): number;
}

/** The dependencies of an endpoint that answers with a stream. */
export interface StreamDeps {
  readers: ReaderBudget;
}

/** Of one load. The lower one holds however many streams are open. */
const MOST_LOAD_BYTES = 4 * 1024 * 1024;
const LEAST_LOAD_BYTES = 64 * 1024;
/** A stream has two loads in memory, each as it was read and as it is rendered. */
const COPIES = 4;
/** A stream gets this part of what is free, so that something is always left for the next one. */
const PART = 8;
const RETRY_AFTER_S = '1';

/**
 * A budget of `capBytes` for streams, of which one owner may have `maxStreams`. A reader that takes nothing keeps what its
 * stream has loaded. So the size of loads falls with the streams that are open, and grows again when they end.
 */
export function createReaderBudget({ capBytes, maxStreams }: { capBytes: number; maxStreams: number }): ReaderBudget {
  const open = new Map<string, number>();
  let total = 0;

  const count = (owner: string, change: number): number => {
    const streams = (open.get(owner) ?? 0) + change;
    if (streams === 0) open.delete(owner);
    else open.set(owner, streams);
    return streams;
  };

  return {
    async *stream(owner, make) {
      if ((open.get(owner) ?? 0) >= maxStreams) {
        throw new ApiError('too_many_streams', `too many open streams: the limit is ${maxStreams}`, {
          headers: { 'retry-after': RETRY_AFTER_S },
        });
      }
      count(owner, 1);
      let own = 0;
      const loadBytes = () => {
        total -= own;
        const fit = (capBytes - total) / PART / COPIES;
        const bytes = Math.floor(Math.min(MOST_LOAD_BYTES, Math.max(LEAST_LOAD_BYTES, fit)));
        own = COPIES * bytes;
        total += own;
        return bytes;
      };
      try {
        yield* make({ loadBytes });
      } finally {
        total -= own;
        count(owner, -1);
      }
    },
    held: () => total,
  };
}

/** For a reader that no caller can slow down. */
export const WHOLE_SHARE: StreamShare = { loadBytes: () => MOST_LOAD_BYTES };
