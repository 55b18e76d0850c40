import { sleep } from '../base/clock.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from './payload-store.ts';

export interface Range {
  offset: number;
  length: number;
}

/** A read costs more than this many bytes between two ranges (a request to S3; a system call here). */
export const GAP_BYTES = 64 * 1024;
/** Bounds one buffer, unless a single range is larger. */
export const MAX_READ_BYTES = 4 * 1024 * 1024;
/** Pauses before the second and third try: what NFS and S3 need to show a new object, short enough for a waiting client. */
const RETRY_MS = [50, 250];

/**
 * Reads ranges of one object, in any order, with as few reads as possible. Gives for each range its bytes, or the error that
 * the last of three tries met; a range that fails within a merged read is tried once more alone, so that a bad spot
 * of a disk costs only the ranges on it. Never rejects.
 */
export async function readRanges(
  store: Pick<PayloadStore, 'read'>,
  ref: PayloadRef,
  ranges: readonly Range[],
): Promise<(Buffer | Error)[]> {
  const out: (Buffer | Error)[] = new Array(ranges.length);
  const groups = mergeRanges(ranges);
  await Promise.all(
    groups.map(async (group) => {
      const start = ranges[group[0]!]!.offset;
      let end = start;
      for (const i of group) end = Math.max(end, ranges[i]!.offset + ranges[i]!.length);
      const bytes = await readWithRetry(store, ref, start, end - start);
      for (const i of group) {
        const { offset, length } = ranges[i]!;
        if (Buffer.isBuffer(bytes)) out[i] = bytes.subarray(offset - start, offset - start + length);
        else if (group.length === 1 || bytes instanceof PayloadNotFound) out[i] = bytes;
        else out[i] = await store.read(ref, offset, length).catch(asError);
      }
    }),
  );
  return out;
}

/**
 * Groups of indexes into `ranges`, each to be read at once, in the order of their offsets.
 *
 * @internal Exported for its tests.
 */
export function mergeRanges(ranges: readonly Range[]): number[][] {
  const order = ranges.map((_, i) => i).sort((a, b) => ranges[a]!.offset - ranges[b]!.offset);
  const groups: number[][] = [];
  let group: number[] = [];
  let start = 0;
  let end = 0;
  for (const i of order) {
    const { offset, length } = ranges[i]!;
    if (group.length > 0 && offset - end <= GAP_BYTES && offset + length - start <= MAX_READ_BYTES) {
      group.push(i);
      end = Math.max(end, offset + length);
    } else {
      group = [i];
      groups.push(group);
      start = offset;
      end = offset + length;
    }
  }
  return groups;
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

/** Why an object could not be read, without paths, names or URLs: `not found`, the error's code, or `unreadable`. */
export function readReason(error: Error): string {
  if (error instanceof PayloadNotFound) return 'not found';
  const { code } = error as NodeJS.ErrnoException;
  return typeof code === 'string' && /^[A-Z0-9_]{1,40}$/.test(code) ? code : 'unreadable';
}
