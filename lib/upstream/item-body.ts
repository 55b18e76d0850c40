import { Buffer, isUtf8 } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import { keyIs, MAX_MEMBERS } from '../json/members.ts';
import { stringStart } from '../json/strings.ts';
import { isUtf8InSteps } from '../json/utf8.ts';
import { isObject, startDocument, type Walk, type WalkEvents, walkAtOnce, walkInSteps } from '../json/walk.ts';

/** More top-level `model` keys than this are no mistake: replacing them all would multiply the item's size. */
const MAX_MODEL_KEYS = 64;

/** No catalogue has a name as long. */
const MAX_MODEL_CHARS = 16_384;

const QUOTE = 0x22;

/** The facts that a worker reads from an item before it sends the item's own bytes. */
export type ItemPeek =
  /** Not JSON or not UTF-8: cannot be, after the check at submit, unless the stored bytes were harmed. */
  | { kind: 'invalid' }
  | { kind: 'not_object' }
  /** More than MAX_MEMBERS at the top level. */
  | { kind: 'too_many_members' }
  | {
      kind: 'object';
      /** The last `model`, decoded, of at most 16,384 characters (cut it before it is stored or shown); null unless a string. */
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
 * throws, and a harmed item never loops. In one go, so only for items of few steps.
 */
export function peekItem(item: Buffer): ItemPeek {
  const members = new ItemMembers(item);
  const walk = startDocument(0, 1, members);
  const end = walkAtOnce(walk, item);
  return end < 0 || !isUtf8(item) ? { kind: 'invalid' } : peeked(walk, item, members);
}

/** The same in steps. */
export function* peekItemInSteps(item: Buffer): Steps<ItemPeek> {
  const members = new ItemMembers(item);
  const walk = startDocument(0, 1, members);
  const end = yield* walkInSteps(walk, item);
  return end < 0 || !(yield* isUtf8InSteps(item)) ? { kind: 'invalid' } : peeked(walk, item, members);
}

/** A class, because one with a prototype is a single allocation an item. */
class ItemMembers implements WalkEvents {
  readonly modelSpans: [number, number][] = [];
  models = 0;
  members = 0;
  stream = false;
  private readonly item: Buffer;
  private isModel = false;
  private isStream = false;

  constructor(item: Buffer) {
    this.item = item;
  }

  key(keyAt: number): void {
    this.members++;
    this.isModel = keyIs(this.item, keyAt, 'model');
    this.isStream = !this.isModel && keyIs(this.item, keyAt, 'stream');
  }

  value(start: number, end: number): void {
    // No other JSON value starts with a t.
    if (this.isStream) this.stream = this.item[start] === 0x74;
    else if (this.isModel && this.models++ < MAX_MODEL_KEYS) this.modelSpans.push([start, end]);
  }
}

function peeked(walk: Walk, item: Buffer, { modelSpans, models, members, stream }: ItemMembers): ItemPeek {
  if (!isObject(walk, item)) return { kind: 'not_object' };
  if (members > MAX_MEMBERS) return { kind: 'too_many_members' };
  const last = modelSpans.at(-1);
  if (last === undefined) return { kind: 'object', model: null, modelIs: 'missing', modelSpans, stream };
  if (models > MAX_MODEL_KEYS) return { kind: 'object', model: null, modelIs: 'repeated', modelSpans: [], stream };
  if (item[last[0]] !== QUOTE) return { kind: 'object', model: null, modelIs: 'not_string', modelSpans, stream };
  return { kind: 'object', model: stringStart(item, last[0], MAX_MODEL_CHARS), modelIs: 'string', modelSpans, stream };
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
