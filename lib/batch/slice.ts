import { type Buffer, isUtf8 } from 'node:buffer';
import { setImmediate } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import { keyIs, type Span, scanElements, scanMembers } from '../json/members.ts';
import { bomLength, expectEnd, faultText, skipSpace, skipValue } from '../json/scan.ts';
import { type Spans, spanList } from '../json/spans.ts';

/** Top-level members of a submission that a surface may need beside `requests` (design section 5, front-doors 1). */
export const SUBMISSION_MEMBERS = [
  'shape',
  'requests',
  'max_attempts',
  'on_limit',
  'completion_window',
  'input_file_id',
  'endpoint',
  'upload_id',
] as const;

/** The elements of `requests`: the first `maxItems` by span, all by number. */
export interface SlicedItems extends Spans {
  /** How many were sent; more than `count` when there were too many. */
  sent: number;
}

/** A sliced body, or the code and text of the error the caller gets. */
export type Slice =
  | {
      ok: true;
      /** Spans of the members asked for, of duplicates the last; `JSON.parse(body.toString('utf8', start, end))`. */
      members: Map<string, Span>;
      /** null when the member is missing. */
      requests: SlicedItems | 'not_array' | null;
    }
  | { ok: false; code: 'invalid_json' | 'invalid_value'; message: string };

/**
 * Finds where each element of the top-level `requests` stands in a submission, and checks the whole body as JSON.parse
 * would, without building it. A byte order mark at the very start is accepted. Memory: 16 bytes an item up to
 * `maxItems`. Offsets count from the start of `body`; spans hold no white space around the element.
 *
 * `invalid_json`: not UTF-8 or not JSON, with the offset. `invalid_value`: JSON, but no object.
 */
export function sliceSubmission(body: Buffer, maxItems: number, names: readonly string[] = SUBMISSION_MEMBERS): Slice {
  if (!isUtf8(body)) return { ok: false, code: 'invalid_json', message: 'request body is not valid UTF-8' };
  const members = new Map<string, Span>();
  const spans = spanList();
  let sent = 0;
  let found = null as 'array' | 'not_array' | null;

  const collect = (start: number, end: number) => {
    if (sent++ < maxItems) spans.push(start, end);
  };
  const visit = (keyAt: number, valueAt: number) => {
    let end: number;
    if (keyIs(body, keyAt, 'requests')) {
      // The last duplicate wins, as in JSON.parse: what an earlier one held is forgotten.
      spans.clear();
      sent = 0;
      found = body[valueAt] === 0x5b ? 'array' : 'not_array';
      end = found === 'array' ? scanElements(body, valueAt, collect) : skipValue(body, valueAt);
    } else {
      end = skipValue(body, valueAt);
    }
    const name = names.find((candidate) => keyIs(body, keyAt, candidate));
    if (end >= 0 && name !== undefined) members.set(name, { start: valueAt, end });
    return end;
  };

  const start = skipSpace(body, bomLength(body));
  const isObject = start < body.length && body[start] === 0x7b;
  const end = expectEnd(body, isObject ? scanMembers(body, start, visit) : skipValue(body, start));
  if (end < 0) {
    return { ok: false, code: 'invalid_json', message: `request body is not valid JSON: ${faultText(body, end)}` };
  }
  if (!isObject) return { ok: false, code: 'invalid_value', message: 'request body must be a JSON object' };
  return { ok: true, members, requests: found === 'array' ? { ...spans.take(), sent } : found };
}

/** Bytes between two turns of the event loop: about a millisecond. */
const TURN_BYTES = 1024 * 1024;

/**
 * CRC32 (unsigned, as zlib's) of each span, in order: stored with the item and checked when it is read back. The event loop
 * goes round in between: 32 MiB at once would keep answers of upstreams waiting for 20 ms.
 */
export async function checksumItems(body: Buffer, items: Spans): Promise<Uint32Array> {
  const sums = new Uint32Array(items.count);
  let turn = 0;
  for (let i = 0; i < items.count; i++) {
    const start = items.offsets[i]!;
    if (start >= turn) {
      await setImmediate();
      turn = start + TURN_BYTES;
    }
    sums[i] = crc32(body.subarray(start, start + items.lengths[i]!));
  }
  return sums;
}
