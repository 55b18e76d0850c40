import { type Buffer, isUtf8 } from 'node:buffer';
import { setImmediate } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import { keyIs, type Span, scanElements } from '../../json/members.ts';
import { bomLength, expectEnd, faultText, skipKey, skipSpace, skipValue } from '../../json/scan.ts';
import { type Spans, spanList } from '../../json/spans.ts';

const COMMA = 0x2c;
const OPEN_BRACKET = 0x5b;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;

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

/** Bytes of checksums between two turns of the event loop: about a millisecond. */
const TURN_BYTES = 1024 * 1024;

/**
 * Finds where each element of the top-level `requests` stands in a submission, and checks the whole body as JSON.parse
 * would, without building it. A byte order mark at the very start is accepted. Memory: 16 bytes an item up to
 * `maxItems`. Offsets count from the start of `body`; spans hold no white space around the element.
 *
 * `invalid_json`: not UTF-8 or not JSON, with the offset. `invalid_value`: JSON, but no object.
 */
export function sliceSubmission(body: Buffer, maxItems: number, names: readonly string[] = SUBMISSION_MEMBERS): Slice {
  const steps = slicing(body, maxItems, names);
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/** The same with turns of the event loop in between: 32 MiB at once would keep answers of upstreams waiting for 65 ms. */
export async function sliceInTurns(
  body: Buffer,
  maxItems: number,
  names: readonly string[] = SUBMISSION_MEMBERS,
): Promise<Slice> {
  const steps = slicing(body, maxItems, names);
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
    await setImmediate();
  }
}

/** Stops where `scanElements` does. */
function* slicing(body: Buffer, maxItems: number, names: readonly string[]): Generator<void, Slice, void> {
  if (!isUtf8(body)) return { ok: false, code: 'invalid_json', message: 'request body is not valid UTF-8' };
  const members = new Map<string, Span>();
  const spans = spanList();
  let sent = 0;
  let found = null as 'array' | 'not_array' | null;

  const collect = (start: number, end: number) => {
    if (sent++ < maxItems) spans.push(start, end);
  };
  function* visit(keyAt: number, valueAt: number): Generator<void, number, void> {
    let end: number;
    if (keyIs(body, keyAt, 'requests')) {
      // The last duplicate wins, as in JSON.parse: what an earlier one held is forgotten.
      spans.clear();
      sent = 0;
      found = body[valueAt] === OPEN_BRACKET ? 'array' : 'not_array';
      end = found === 'array' ? yield* scanElements(body, valueAt, collect) : skipValue(body, valueAt);
    } else {
      end = skipValue(body, valueAt);
    }
    const name = names.find((candidate) => keyIs(body, keyAt, candidate));
    if (end >= 0 && name !== undefined) members.set(name, { start: valueAt, end });
    return end;
  }

  const start = skipSpace(body, bomLength(body));
  const isObject = start < body.length && body[start] === OPEN_BRACE;
  const end = expectEnd(body, isObject ? yield* passMembers(body, start, visit) : skipValue(body, start));
  if (end < 0) {
    return { ok: false, code: 'invalid_json', message: `request body is not valid JSON: ${faultText(body, end)}` };
  }
  if (!isObject) return { ok: false, code: 'invalid_value', message: 'request body must be a JSON object' };
  return { ok: true, members, requests: found === 'array' ? { ...spans.take(), sent } : found };
}

/** As scanMembers, with a `visit` that may stop. */
function* passMembers(
  bytes: Buffer,
  from: number,
  visit: (keyAt: number, valueAt: number) => Generator<void, number, void>,
): Generator<void, number, void> {
  let at = skipSpace(bytes, from + 1);
  if (at < bytes.length && bytes[at] === CLOSE_BRACE) return at + 1;
  for (;;) {
    const valueAt = skipKey(bytes, at);
    if (valueAt < 0) return valueAt;
    at = yield* visit(at, valueAt);
    if (at < 0) return at;
    at = skipSpace(bytes, at);
    if (at < bytes.length && bytes[at] === CLOSE_BRACE) return at + 1;
    if (at >= bytes.length || bytes[at] !== COMMA) return -1 - at;
    at = skipSpace(bytes, at + 1);
  }
}

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
