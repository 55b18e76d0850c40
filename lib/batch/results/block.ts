import { ITEM_STATES, type ItemState } from '../../model/batch.ts';

/** Elements of `results`, rendered and joined by commas, one after the other in idx order. */
export interface ElementBlock {
  count: number;
  /** Their bytes, in pieces. */
  chunks: Buffer[];
  /** Of each element: its idx, its state as an index into ITEM_STATES, and from where to where its bytes are. */
  idx: number[];
  state: number[];
  start: number[];
  end: number[];
}

/** Chunks are about this large: large enough for few writes, small enough for the first byte. */
export const CHUNK_BYTES = 256 * 1024;
/** From here on bytes are passed on as they are: copying them would cost more than a write of their own. */
export const LARGE_BYTES = 1024 * 1024;
/** The least size of a chunk, for a block that becomes larger than announced. */
const MIN_BYTES = 16 * 1024;

const COMMA = 0x2c;
const CLOSE = 0x7d;
const HEAD = Buffer.from('{"idx":');
const STATE = ITEM_STATES.map((state) => Buffer.from(`,"state":"${state}"`));
const RESPONSE = Buffer.from(',"state":"completed","response":');
/** Of an idx, which is an int of Postgres. */
const MAX_DIGITS = 10;
const COMPLETED = ITEM_STATES.indexOf('completed');
const DISCARDED = ITEM_STATES.indexOf('discarded');

/** Puts elements into a block. Bytes are copied, unless they are large: those must not change any more. */
export interface BlockWriter {
  /** A completed item with its response's own bytes. */
  response(idx: number, body: Buffer): void;
  /** An item without anything but its state. */
  bare(idx: number, state: number): void;
  discarded(idx: number, error: string): void;
  /** A completed item whose response cannot be given; `reason` is short and names no path. */
  failed(idx: number, reason: string): void;
  /** An element as it was rendered before. */
  element(idx: number, state: ItemState, bytes: Buffer): void;
  done(): ElementBlock;
}

/**
 * Makes a writer; `bytes` is about how much will be written, so that a small block takes little memory. `takeChunk` returns
 * memory of CHUNK_BYTES for large ones.
 */
export function blockWriter(
  bytes: number,
  takeChunk: () => Buffer = () => Buffer.allocUnsafeSlow(CHUNK_BYTES),
): BlockWriter {
  const block: ElementBlock = { count: 0, chunks: [], idx: [], state: [], start: [], end: [] };
  let left = bytes;
  let chunk: Buffer = Buffer.allocUnsafeSlow(0);
  let at = 0;
  let before = 0;

  const seal = () => {
    if (at > 0) block.chunks.push(chunk.subarray(0, at));
    before += at;
    at = 0;
  };
  const room = (needed: number) => {
    if (at + needed <= chunk.length) return;
    left -= at;
    seal();
    const size = Math.max(needed, left, MIN_BYTES);
    if (size < CHUNK_BYTES || needed > CHUNK_BYTES) chunk = Buffer.allocUnsafeSlow(size < CHUNK_BYTES ? size : needed);
    else chunk = takeChunk();
  };
  const pass = (body: Buffer, room: number) => {
    seal();
    block.chunks.push(body);
    before += body.length;
    chunk = Buffer.allocUnsafeSlow(room);
  };
  // Of memory that threads share, `set` copies a word at a time.
  const put = (part: Buffer) => {
    at += part.copy(chunk, at);
  };
  const begin = (idx: number, state: number) => {
    if (block.count > 0) chunk[at++] = COMMA;
    block.idx.push(idx);
    block.state.push(state);
    block.start.push(before + at);
    block.count++;
  };
  const end = () => {
    block.end.push(before + at);
  };
  const beginNumbered = (idx: number, state: number) => {
    begin(idx, state);
    put(HEAD);
    at = putDigits(chunk, at, idx);
  };
  const frame = 1 + HEAD.length + MAX_DIGITS + RESPONSE.length + 1;
  const withError = (idx: number, state: number, error: string) => {
    const text = Buffer.from(`,"error":${JSON.stringify(error)}}`);
    room(frame + text.length);
    beginNumbered(idx, state);
    put(STATE[state]!);
    put(text);
    end();
  };

  return {
    response(idx, body) {
      const large = body.length >= LARGE_BYTES;
      room(large ? frame : frame + body.length);
      beginNumbered(idx, COMPLETED);
      put(RESPONSE);
      if (large) pass(body, 1);
      else put(body);
      chunk[at++] = CLOSE;
      end();
    },
    bare(idx, state) {
      room(frame);
      beginNumbered(idx, state);
      put(STATE[state]!);
      chunk[at++] = CLOSE;
      end();
    },
    discarded: (idx, error) => withError(idx, DISCARDED, error),
    failed: (idx, reason) => withError(idx, COMPLETED, `batch item: load output: ${reason}`),
    element(idx, state, given) {
      const large = given.length >= LARGE_BYTES;
      room(large ? 1 : 1 + given.length);
      begin(idx, ITEM_STATES.indexOf(state));
      if (large) pass(given, 0);
      else put(given);
      end();
    },
    done() {
      seal();
      return block;
    },
  };
}

function putDigits(target: Buffer, from: number, value: number): number {
  let digits = 1;
  for (let bound = 10; value >= bound; bound *= 10) digits++;
  let rest = value;
  for (let at = from + digits - 1; at >= from; at--) {
    target[at] = 0x30 + (rest % 10);
    rest = Math.floor(rest / 10);
  }
  return from + digits;
}

/** Its first `count` elements, at least one. */
export function firstOf(block: ElementBlock, count: number): Buffer[] {
  if (count === block.count) return block.chunks;
  let left = block.end[count - 1]!;
  const chunks: Buffer[] = [];
  for (const chunk of block.chunks) {
    if (left === 0) break;
    chunks.push(chunk.subarray(0, left));
    left -= Math.min(left, chunk.length);
  }
  return chunks;
}
