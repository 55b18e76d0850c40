import { crc32 } from 'node:zlib';
import type { Outcomes } from '../store/outcomes.sql.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from '../store/payloads.ts';
import { LARGE_BYTES } from './block.ts';
import { GAP_BYTES, MAX_READ_BYTES, readRanges, readReason } from './ranges.ts';

/** Memory that reads go into, made at the first use. What was read lies in it until the next call with the same. */
export interface Scratch {
  memory: Buffer | null;
}

/** A little more than the responses of one load: what lies between them is read as well. */
const SCRATCH_BYTES = 4.5 * 1024 * 1024;
/** Enough for the latency of S3 and for the four threads that read files; few enough for many readers at once. */
const READS_AT_ONCE = 16;

const MISMATCH = new Error('checksum mismatch');

/** One read: rows of one segment, in the order of their offsets, close to each other. */
interface Span {
  ref: PayloadRef;
  start: number;
  end: number;
  /** Begins with a response that is passed on as it is, so it cannot lie in memory that is used again. */
  large: boolean;
  /** Positions in what was asked for. */
  members: number[];
}

/**
 * The responses of completed rows, each checked against its CRC32, in the order of `wanted`; or the error that kept one
 * from being read. With as few reads as possible, some of them at a time. Never rejects.
 */
export async function readSpans(
  store: Pick<PayloadStore, 'read'>,
  rows: Outcomes,
  wanted: readonly number[],
  scratch: Scratch,
): Promise<(Buffer | Error)[]> {
  const out: (Buffer | Error)[] = new Array(wanted.length);
  const spans = mergeSpans(rows, wanted);
  let used = 0;
  const memoryOf = ({ start, end, large }: Span): Buffer | undefined => {
    const length = end - start;
    if (large || used + length > SCRATCH_BYTES) return undefined;
    scratch.memory ??= Buffer.allocUnsafeSlow(SCRATCH_BYTES);
    used += length;
    return scratch.memory.subarray(used - length, used);
  };
  let next = 0;
  const reader = async () => {
    while (next < spans.length) {
      const span = spans[next++]!;
      const { ref, start, end, members } = span;
      const bytes = await store.read(ref, start, end - start, memoryOf(span)).catch(() => null);
      const read = bytes === null ? await readAgain(store, rows, wanted, span) : null;
      for (let m = 0; m < members.length; m++) {
        const position = members[m]!;
        const row = wanted[position]!;
        const from = rows.offset[row]! - start;
        out[position] = checked(read ? read[m]! : bytes!.subarray(from, from + rows.length[row]!), rows.crc[row]!);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(READS_AT_ONCE, spans.length) }, reader));
  return out;
}

/** Why a response is not there, as the end of a sentence; and whether that is because its object is not. */
export function spanFault(error: Error): { reason: string; missing: boolean } {
  return {
    reason: error === MISMATCH ? MISMATCH.message : readReason(error),
    missing: error instanceof PayloadNotFound,
  };
}

/** With pauses, and in the end each alone, so that a bad spot costs only what is on it. */
function readAgain(store: Pick<PayloadStore, 'read'>, rows: Outcomes, wanted: readonly number[], span: Span) {
  const ranges = span.members.map((position) => {
    const row = wanted[position]!;
    return { offset: rows.offset[row]!, length: rows.length[row]! };
  });
  return readRanges(store, span.ref, ranges);
}

function checked(read: Buffer | Error, crc: number): Buffer | Error {
  return read instanceof Error || crc32(read) === crc ? read : MISMATCH;
}

function mergeSpans(rows: Outcomes, wanted: readonly number[]): Span[] {
  const bySegment: (number[] | undefined)[] = new Array(rows.segmentIds.length);
  for (let position = 0; position < wanted.length; position++) {
    const segment = rows.segment[wanted[position]!]!;
    const members = bySegment[segment];
    if (members) members.push(position);
    else bySegment[segment] = [position];
  }
  const offsetOf = (position: number) => rows.offset[wanted[position]!]!;
  const spans: Span[] = [];
  for (let segment = 0; segment < bySegment.length; segment++) {
    const members = bySegment[segment];
    if (members === undefined) continue;
    members.sort((a, b) => offsetOf(a) - offsetOf(b));
    const ref: PayloadRef = { kind: 'segment', id: rows.segmentIds[segment]! };
    let span: Span | null = null;
    for (const position of members) {
      const start = offsetOf(position);
      const length = rows.length[wanted[position]!]!;
      const large = length >= LARGE_BYTES;
      const joins =
        span !== null && !large && start - span.end <= GAP_BYTES && start + length - span.start <= MAX_READ_BYTES;
      if (span !== null && joins) {
        span.members.push(position);
        span.end = Math.max(span.end, start + length);
      } else {
        span = { ref, start, end: start + length, large, members: [position] };
        spans.push(span);
      }
    }
  }
  return spans;
}
