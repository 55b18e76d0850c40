import type { Buffer } from 'node:buffer';
import { crc32 } from 'node:zlib';
import { atOnce, crc32InSteps, inTurns, STEP_BYTES, type Steps } from '../../base/turns.ts';
import { keyIs, MAX_MEMBERS, nameOf, type Span } from '../../json/members.ts';
import { bomLength, faultText } from '../../json/scan.ts';
import { type Spans, spanList } from '../../json/spans.ts';
import { isUtf8InSteps } from '../../json/utf8.ts';
import { isObject, startDocument, type Walk, walkInSteps } from '../../json/walk.ts';

const OPEN_BRACKET = 0x5b;

/**
 * Top-level members of a submission that a surface may need beside `requests` ("Which surface a call belongs to" in
 * docs/spec/native-api.md).
 */
const SUBMISSION_MEMBERS = [
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
  return atOnce(sliceInSteps(body, maxItems, names));
}

/** The same in turns of the event loop: 32 MiB at once would keep answers of upstreams waiting for 65 ms and more. */
export function sliceInTurns(
  body: Buffer,
  maxItems: number,
  names: readonly string[] = SUBMISSION_MEMBERS,
): Promise<Slice> {
  return inTurns(sliceInSteps(body, maxItems, names), body.length);
}

/**
 * The same in steps.
 *
 * @internal Exported for its tests.
 */
export function* sliceInSteps(body: Buffer, maxItems: number, names: readonly string[]): Steps<Slice> {
  if (!(yield* isUtf8InSteps(body))) {
    return { ok: false, code: 'invalid_json', message: 'request body is not valid UTF-8' };
  }
  const members = new Map<string, Span>();
  const spans = spanList();
  let keys = 0;
  let name: string | undefined;
  let inRequests = false;
  let sent = 0;
  let found = null as 'array' | 'not_array' | null;

  const walk: Walk = startDocument(bomLength(body), 2, {
    key(keyAt, depth) {
      if (depth > 1) return;
      keys++;
      name = nameOf(body, keyAt, names);
      inRequests = keyIs(body, keyAt, 'requests');
      if (!inRequests) return;
      // The last duplicate wins, as in JSON.parse: what an earlier one held is forgotten.
      spans.clear();
      sent = 0;
    },
    value(start, end, depth) {
      if (depth === 1) {
        if (inRequests) found = body[start] === OPEN_BRACKET ? 'array' : 'not_array';
        inRequests = false;
        if (name !== undefined) members.set(name, { start, end });
      } else if (inRequests && sent++ < maxItems) spans.push(start, end);
    },
  });
  const end = yield* walkInSteps(walk, body);
  if (end < 0) {
    return { ok: false, code: 'invalid_json', message: `request body is not valid JSON: ${faultText(body, end)}` };
  }
  if (!isObject(walk, body)) return { ok: false, code: 'invalid_value', message: 'request body must be a JSON object' };
  if (keys > MAX_MEMBERS) {
    const message = `request body has too many members: ${keys} sent, the limit is ${MAX_MEMBERS}`;
    return { ok: false, code: 'invalid_value', message };
  }
  return { ok: true, members, requests: found === 'array' ? { ...spans.take(), sent } : found };
}

/** CRC32 (unsigned, as zlib's) of each span, in order: stored with the item and checked when it is read back. */
export function checksumItems(body: Buffer, items: Spans): Promise<Uint32Array> {
  return inTurns(checksumming(body, items), body.length);
}

function* checksumming(body: Buffer, items: Spans): Steps<Uint32Array> {
  const sums = new Uint32Array(items.count);
  let stop = STEP_BYTES;
  for (let i = 0; i < items.count; i++) {
    const start = items.offsets[i]!;
    const item = body.subarray(start, start + items.lengths[i]!);
    sums[i] = item.length <= STEP_BYTES ? crc32(item) : yield* crc32InSteps(item);
    if (start < stop) continue;
    yield;
    stop = start + STEP_BYTES;
  }
  return sums;
}
