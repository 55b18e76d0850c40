import { crc32 } from 'node:zlib';
import { checksum, SUM_AT_ONCE_BYTES } from '../../base/turns.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore, type RangeRead } from '../../payloads/payload-store.ts';
import { type MergedRange, mergeInOrder, readRanges, readReason } from '../../payloads/ranges.ts';
import { LARGE_BYTES } from './block.ts';
import type { ResultRows } from './result-rows.sql.ts';

export type SpanStore = Pick<PayloadStore, 'read' | 'readMany'>;

/**
 * Memory that reads go into, made at the first use. The bytes read stay valid until the next call with the same memory.
 * Bytes in memory of the store stay valid until `release`, which the user calls in the end.
 */
export interface Scratch {
  memory: Buffer | null;
  /** Of the memory, in bytes. */
  size: number;
  release: (() => void) | null;
}

/** From so many reads on they are made together, where the store can. */
const MANY = 8;
/** Enough for the latency of S3 and for the four threads that read files; few enough for many readers at once. */
const READS_AT_ONCE = 16;

const MISMATCH = new Error('checksum mismatch');

/** One read of rows of one segment; the members are positions in what was requested. */
interface Span extends RangeRead, MergedRange {
  /** Begins with a response that is passed on as it is, so it cannot lie in memory that is used again. */
  large: boolean;
}

/**
 * The responses of completed rows, in the order of `wanted`, not checked yet; or the error that kept one from being read.
 * With as few reads as possible, some of them at a time. Never rejects.
 */
export async function readSpans(
  store: SpanStore,
  rows: ResultRows,
  wanted: readonly number[],
  scratch: Scratch,
): Promise<(Buffer | Error)[]> {
  const out: (Buffer | Error)[] = new Array(wanted.length);
  const merged = mergeSpans(rows, wanted);
  const place = ({ offset, members }: Span, bytes: Buffer, at: number) => {
    for (const position of members) {
      const row = wanted[position]!;
      const from = at + rows.offset[row]! - offset;
      out[position] = bytes.subarray(from, from + rows.length[row]!);
    }
  };
  const spans = merged.length < MANY ? merged : await readMany(store, merged, scratch, place);
  let used = 0;
  const memoryOf = ({ length, large }: Span): Buffer | undefined => {
    if (large || used + length > scratch.size) return undefined;
    if (scratch.memory?.length !== scratch.size) scratch.memory = Buffer.allocUnsafeSlow(scratch.size);
    used += length;
    return scratch.memory.subarray(used - length, used);
  };
  let next = 0;
  const reader = async () => {
    while (next < spans.length) {
      const span = spans[next++]!;
      const { ref, offset, length, members } = span;
      const bytes = await store.read(ref, offset, length, memoryOf(span)).catch(() => null);
      if (bytes !== null) {
        place(span, bytes, 0);
        continue;
      }
      const read = await readAgain(store, rows, wanted, span);
      for (const [m, position] of members.entries()) out[position] = read[m]!;
    }
  };
  await Promise.all(Array.from({ length: Math.min(READS_AT_ONCE, spans.length) }, reader));
  return out;
}

/** Reads as much as possible in one go, and returns the remaining spans. */
async function readMany(
  store: SpanStore,
  spans: Span[],
  scratch: Scratch,
  place: (span: Span, bytes: Buffer, at: number) => void,
): Promise<Span[]> {
  const small = spans.filter(({ large }) => !large);
  const many = await store.readMany?.(small);
  if (!many) return spans;
  scratch.release = many.release;
  const left = spans.filter(({ large }) => large);
  let at = 0;
  for (const [i, span] of small.entries()) {
    if (many.done[i] === 1) place(span, many.memory, at);
    else left.push(span);
    at += span.length;
  }
  return left;
}

/** The reason why a response is missing, as the end of a sentence, and whether its object is missing. */
export function spanFault(error: Error): { reason: string; missing: boolean } {
  return {
    reason: error === MISMATCH ? MISMATCH.message : readReason(error),
    missing: error instanceof PayloadNotFound,
  };
}

/** With pauses, and in the end each alone, so that a bad spot costs only what is on it. */
function readAgain(store: SpanStore, rows: ResultRows, wanted: readonly number[], span: Span) {
  const ranges = span.members.map((position) => {
    const row = wanted[position]!;
    return { offset: rows.offset[row]!, length: rows.length[row]! };
  });
  return readRanges(store, span.ref, ranges);
}

/**
 * Checks the large ones of responses that were read, in turns of the event loop, and puts an error in the place of each
 * that is not what was written. The others are checked one by one.
 */
export async function checkLarge(read: (Buffer | Error)[], crcOf: (position: number) => number): Promise<void> {
  for (const [position, bytes] of read.entries()) {
    if (bytes instanceof Error || bytes.length <= SUM_AT_ONCE_BYTES) continue;
    if ((await checksum(bytes)) !== crcOf(position)) read[position] = MISMATCH;
  }
}

/**
 * The response, or the error that it is not what was written. Large ones are checked before. Just before it is copied:
 * then it is in the cache for that.
 */
export function checked(read: Buffer | Error, crc: number): Buffer | Error {
  const isDone = read instanceof Error || read.length > SUM_AT_ONCE_BYTES;
  return isDone || crc32(read) === crc ? read : MISMATCH;
}

function mergeSpans(rows: ResultRows, wanted: readonly number[]): Span[] {
  const bySegment: (number[] | undefined)[] = new Array(rows.segmentIds.length);
  for (let position = 0; position < wanted.length; position++) {
    const segment = rows.segment[wanted[position]!]!;
    const members = bySegment[segment];
    if (members) members.push(position);
    else bySegment[segment] = [position];
  }
  const offsetOf = (position: number) => rows.offset[wanted[position]!]!;
  const lengthOf = (position: number) => rows.length[wanted[position]!]!;
  const isLarge = (position: number) => lengthOf(position) >= LARGE_BYTES;
  const rule = { offsetOf, lengthOf, mayJoin: (_: number, next: number) => !isLarge(next) };
  const spans: Span[] = [];
  for (let segment = 0; segment < bySegment.length; segment++) {
    const members = bySegment[segment];
    if (members === undefined) continue;
    if (members.length > 1) members.sort((a, b) => offsetOf(a) - offsetOf(b));
    const ref: PayloadRef = { kind: 'segment', id: rows.segmentIds[segment]! };
    for (const { offset, length, members: near } of mergeInOrder(members, rule)) {
      spans.push({ ref, offset, length, large: isLarge(near[0]!), members: near });
    }
  }
  return spans;
}
