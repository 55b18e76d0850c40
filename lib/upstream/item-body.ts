import { Buffer, isUtf8 } from 'node:buffer';
import { findMembers, keyIs, type Members, scanMembers } from '../json/members.ts';
import { expectEnd, skipSpace, skipValue } from '../json/scan.ts';

/** More top-level `model` keys than this are no mistake: replacing them all would multiply the item's size. */
const MAX_MODEL_KEYS = 64;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const OPEN_BRACE = 0x7b;

/** What a worker needs to know of an item before it sends the item's own bytes. */
export type ItemPeek =
  /** Not JSON or not UTF-8: cannot be, after the check at submit, unless the stored bytes were harmed. */
  | { kind: 'invalid' }
  | { kind: 'not_object' }
  | {
      kind: 'object';
      /** The last `model`, decoded, of any length (cut it before it is stored or shown); null unless a string. */
      model: string | null;
      /** Why `model` is null: `repeated` means more than 64 `model` keys. */
      modelIs: 'string' | 'missing' | 'not_string' | 'repeated';
      /** Value spans `[start, end)` of every top-level `model`, ascending; the last one is what counts. */
      modelSpans: [number, number][];
      /** True only when the last top-level `stream` is literally `true`. */
      stream: boolean;
    };

/**
 * Reads `model` and `stream` at the top level of an item, whole validation included, without building the rest: 1.0 us
 * for the 640 bytes of bench/slice.ts, where JSON.parse takes 2.3. White space around the item is tolerated. Never
 * throws, and a harmed item never loops.
 */
export function peekItem(item: Buffer): ItemPeek {
  const start = skipSpace(item, 0);
  if (item[start] !== OPEN_BRACE) {
    return expectEnd(item, skipValue(item, start)) < 0 || !isUtf8(item) ? { kind: 'invalid' } : { kind: 'not_object' };
  }
  const modelSpans: [number, number][] = [];
  let models = 0;
  let stream = false;
  const end = scanMembers(item, start, (keyAt, valueAt) => {
    const valueEnd = skipValue(item, valueAt);
    if (valueEnd < 0) return valueEnd;
    if (keyIs(item, keyAt, 'model')) {
      if (models++ < MAX_MODEL_KEYS) modelSpans.push([valueAt, valueEnd]);
    } else if (keyIs(item, keyAt, 'stream')) {
      // No other JSON value starts with a t.
      stream = item[valueAt] === 0x74;
    }
    return valueEnd;
  });
  if (expectEnd(item, end) < 0 || !isUtf8(item)) return { kind: 'invalid' };
  const last = modelSpans.at(-1);
  if (last === undefined) return { kind: 'object', model: null, modelIs: 'missing', modelSpans, stream };
  if (models > MAX_MODEL_KEYS) return { kind: 'object', model: null, modelIs: 'repeated', modelSpans: [], stream };
  if (item[last[0]] !== QUOTE) return { kind: 'object', model: null, modelIs: 'not_string', modelSpans, stream };
  return { kind: 'object', model: decodeString(item, last[0], last[1]), modelIs: 'string', modelSpans, stream };
}

/** The text of a valid JSON string that stands at `[start, end)`, quotes included. */
function decodeString(bytes: Buffer, start: number, end: number): string {
  for (let at = start; at < end; at++) {
    if (bytes[at] === BACKSLASH) return JSON.parse(bytes.toString('utf8', start, end)) as string;
  }
  return bytes.toString('utf8', start + 1, end - 1);
}

/**
 * The item's bytes with each span (of `peekItem`) replaced by `wireName` as a JSON string: pieces to be sent one after
 * the other. Everything but the new value is a view of `item`, not a copy.
 */
export function replaceModel(item: Buffer, spans: readonly (readonly [number, number])[], wireName: string): Buffer[] {
  const value = Buffer.from(JSON.stringify(wireName));
  const pieces: Buffer[] = [];
  let from = 0;
  for (const [start, end] of spans) {
    pieces.push(item.subarray(from, start), value);
    from = end;
  }
  pieces.push(item.subarray(from));
  return pieces;
}

/**
 * Whether an upstream's answer is a JSON object, by full validation (UTF-8 included) without building it. A byte order
 * mark is `invalid`, as for JSON.parse: the bytes go into the results document as they are. With the spans of the named
 * top-level members (ASCII names, the last of duplicates) `usage` or `error` of a large answer can be parsed alone:
 * `JSON.parse(body.toString('utf8', start, end))`.
 */
export function topLevelMembers(body: Buffer, names: readonly string[]): Members {
  return isUtf8(body) ? findMembers(body, names) : { kind: 'invalid', fault: -1 };
}
