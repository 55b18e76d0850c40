/** Item spans in typed arrays: 16 bytes an item, no object per item. Offsets above 4 GiB stay exact. */
export interface Spans {
  /** Number of spans kept; the arrays are exactly this long. */
  count: number;
  /** Byte offsets in the document. */
  offsets: Float64Array;
  /** Lengths in bytes. */
  lengths: Float64Array;
}

/** Collects spans in arrays that grow by doubling; `clear` forgets them all, `take` returns what is there. */
export interface SpanList {
  push(start: number, end: number): void;
  clear(): void;
  take(): Spans;
}

/** An empty list. */
export function spanList(): SpanList {
  let count = 0;
  let offsets = new Float64Array(64);
  let lengths = new Float64Array(64);
  return {
    push(start, end) {
      if (count === offsets.length) {
        offsets = doubled(offsets);
        lengths = doubled(lengths);
      }
      offsets[count] = start;
      lengths[count] = end - start;
      count++;
    },
    clear() {
      count = 0;
    },
    take: () => ({ count, offsets: offsets.subarray(0, count), lengths: lengths.subarray(0, count) }),
  };
}

/** A copy with room for twice as many numbers. */
export function doubled(numbers: Float64Array<ArrayBuffer>): Float64Array<ArrayBuffer> {
  const grown = new Float64Array(numbers.length * 2);
  grown.set(numbers);
  return grown;
}
