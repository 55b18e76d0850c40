import { sleep } from '../base/clock.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from './payload-store.ts';

export interface Range {
  offset: number;
  length: number;
}

/** A read costs more than this many bytes between two ranges (a request to S3; a system call here). */
const GAP_BYTES = 64 * 1024;
/** Bounds one buffer, unless a single range is larger. */
const MAX_READ_BYTES = 4 * 1024 * 1024;
/** Pauses before the second and third try: what NFS and S3 need to show a new object, short enough for a waiting client. */
const RETRY_MS = [50, 250];

/**
 * Reads ranges of one object, in any order, with as few reads as possible. Returns for each range its bytes, or the
 * error that the last of three tries met. A range that fails within a merged read is tried once more alone, so that a
 * bad spot of a disk costs only the ranges on it. Never rejects.
 */
export async function readRanges(
  store: Pick<PayloadStore, 'read'>,
  ref: PayloadRef,
  ranges: readonly Range[],
): Promise<(Buffer | Error)[]> {
  const out: (Buffer | Error)[] = new Array(ranges.length);
  await Promise.all(
    mergeRanges(ranges).map(async (merged) => {
      const bytes = await readWithRetry(store, ref, merged.offset, merged.length);
      for (const i of merged.members) {
        const { offset, length } = ranges[i]!;
        const at = offset - merged.offset;
        if (Buffer.isBuffer(bytes)) out[i] = bytes.subarray(at, at + length);
        else if (merged.members.length === 1 || bytes instanceof PayloadNotFound) out[i] = bytes;
        else out[i] = await store.read(ref, offset, length).catch(asError);
      }
    }),
  );
  return out;
}

/** Ranges of one object that are read at once; between them may be bytes that nobody asked for. */
export interface MergedRange extends Range {
  /** Numbers of the ranges, in the order of their offsets. */
  members: number[];
}

/** The rule that decides which ranges are read at once. */
export interface MergeRule {
  offsetOf(member: number): number;
  lengthOf(member: number): number;
  /** False when `next` needs a read of its own, near as it may be to a read that begins with `first`. */
  mayJoin?(first: number, next: number): boolean;
  /** Bounds one read, unless a single range is larger; 4 MiB. */
  maxBytes?: number;
}

/** Merges ranges, which come in the order of their offsets, into few reads. */
export function mergeInOrder(members: readonly number[], rule: MergeRule): MergedRange[] {
  const { mayJoin, maxBytes = MAX_READ_BYTES } = rule;
  const reads: MergedRange[] = [];
  let read: MergedRange | null = null;
  for (const member of members) {
    const offset = rule.offsetOf(member);
    const length = rule.lengthOf(member);
    const joins =
      read !== null &&
      offset - (read.offset + read.length) <= GAP_BYTES &&
      offset + length - read.offset <= maxBytes &&
      (mayJoin === undefined || mayJoin(read.members[0]!, member));
    if (read !== null && joins) {
      read.members.push(member);
      read.length = Math.max(read.length, offset + length - read.offset);
    } else {
      read = { offset, length, members: [member] };
      reads.push(read);
    }
  }
  return reads;
}

/**
 * Merges ranges that come in any order.
 *
 * @internal Exported for its tests.
 */
export function mergeRanges(ranges: readonly Range[]): MergedRange[] {
  const offsetOf = (i: number) => ranges[i]!.offset;
  const order = ranges.map((_, i) => i).sort((a, b) => offsetOf(a) - offsetOf(b));
  return mergeInOrder(order, { offsetOf, lengthOf: (i) => ranges[i]!.length });
}

async function readWithRetry(store: Pick<PayloadStore, 'read'>, ref: PayloadRef, offset: number, length: number) {
  for (let attempt = 0; ; attempt++) {
    const result = await store.read(ref, offset, length).catch(asError);
    if (Buffer.isBuffer(result) || attempt === RETRY_MS.length) return result;
    await sleep(RETRY_MS[attempt]!);
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

/** The reason of a failed read, without paths, names or URLs: `not found`, the error's code, or `unreadable`. */
export function readReason(error: Error): string {
  if (error instanceof PayloadNotFound) return 'not found';
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === 'string' && /^[A-Z0-9_]{1,40}$/.test(code) ? code : 'unreadable';
}
