import { Buffer, isUtf8 } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import { MAX_MEMBERS, nameOf } from '../json/members.ts';
import { stringStart } from '../json/strings.ts';
import { isUtf8InSteps } from '../json/utf8.ts';
import { isObject, startDocument, type Walk, type WalkEvents, walkAtOnce, walkInSteps } from '../json/walk.ts';

/** More top-level `model` keys than this are no mistake: replacing them all would multiply the item's size. */
const MAX_MODEL_KEYS = 64;

/** No catalogue has a name as long. */
const MAX_MODEL_CHARS = 16_384;

const QUOTE = 0x22;
const MINUS = 0x2d;
const NINE = 0x39;
const OPEN_BRACKET = 0x5b;
const LOWER_T = 0x74;

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
      /** Whether the last top-level `stream` and `background` are literally `true`. */
      stream: boolean;
      background: boolean;
      /** The texts that `input` asks vectors for: 1 unless `countInputs`, and for anything but a list of texts or of token lists. */
      inputs: number;
    };

/**
 * Reads what decides about an item at its top level, whole validation included, without building the rest: 1.0 us for the
 * 640 bytes of bench/slice.ts, where JSON.parse takes 2.3. `countInputs` is for embeddings. White space around the item is
 * tolerated. Never throws, and a harmed item never loops. In one go, so only for items of few steps.
 */
export function peekItem(item: Buffer, countInputs = false): ItemPeek {
  const members = new ItemMembers(item);
  const walk = startDocument(0, countInputs ? 2 : 1, members);
  const end = walkAtOnce(walk, item);
  return end < 0 || !isUtf8(item) ? { kind: 'invalid' } : peeked(walk, item, members);
}

/** The same in steps. */
export function* peekItemInSteps(item: Buffer, countInputs = false): Steps<ItemPeek> {
  const members = new ItemMembers(item);
  const walk = startDocument(0, countInputs ? 2 : 1, members);
  const end = yield* walkInSteps(walk, item);
  return end < 0 || !(yield* isUtf8InSteps(item)) ? { kind: 'invalid' } : peeked(walk, item, members);
}

const WANTED = ['model', 'stream', 'background', 'input'] as const;
type Wanted = (typeof WANTED)[number];

/** A class, because one with a prototype is a single allocation an item. */
class ItemMembers implements WalkEvents {
  readonly modelSpans: [number, number][] = [];
  models = 0;
  members = 0;
  stream = false;
  background = false;
  inputs = 1;
  private readonly item: Buffer;
  private name: Wanted | undefined;
  /** Of the list that is open. */
  private elements = 0;
  private ofNumbers = false;

  constructor(item: Buffer) {
    this.item = item;
  }

  key(keyAt: number, depth: number): void {
    if (depth > 1) return;
    this.members++;
    this.name = nameOf(this.item, keyAt, WANTED);
    this.elements = 0;
    this.ofNumbers = false;
  }

  value(start: number, end: number, depth: number): void {
    if (depth > 1) this.element(start);
    else if (this.name === 'model') {
      if (this.models++ < MAX_MODEL_KEYS) this.modelSpans.push([start, end]);
    } else if (this.name === 'input') {
      this.inputs = this.item[start] === OPEN_BRACKET && !this.ofNumbers ? this.elements : 1;
    } else if (this.name !== undefined) this[this.name] = this.item[start] === LOWER_T; // no other JSON value starts with a t
  }

  /** A list of numbers is one text as tokens. */
  private element(start: number): void {
    const first = this.item[start]!;
    if (this.elements++ === 0) this.ofNumbers = first >= MINUS && first <= NINE;
  }
}

function peeked(walk: Walk, item: Buffer, read: ItemMembers): ItemPeek {
  if (!isObject(walk, item)) return { kind: 'not_object' };
  const { modelSpans, models, members, stream, background, inputs } = read;
  if (members > MAX_MEMBERS) return { kind: 'too_many_members' };
  const found = { kind: 'object', stream, background, inputs } as const;
  const last = modelSpans.at(-1);
  if (last === undefined) return { ...found, model: null, modelIs: 'missing', modelSpans };
  if (models > MAX_MODEL_KEYS) return { ...found, model: null, modelIs: 'repeated', modelSpans: [] };
  if (item[last[0]] !== QUOTE) return { ...found, model: null, modelIs: 'not_string', modelSpans };
  return { ...found, model: stringStart(item, last[0], MAX_MODEL_CHARS), modelIs: 'string', modelSpans };
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
