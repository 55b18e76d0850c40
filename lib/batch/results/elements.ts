import type { Db } from '../../db/database.ts';
import { ITEM_STATES, type ItemState } from '../../model/batch.ts';
import { blockWriter, type ElementBlock } from './block.ts';
import type { ChunkMemory } from './chunk-memory.ts';
import { type StreamShare, WHOLE_SHARE } from './reader-budget.ts';
import { type ResultRows, readResultRows } from './result-rows.sql.ts';
import { checked, checkLarge, readSpans, type Scratch, type SpanStore, spanFault } from './spans.ts';

export interface ElementDeps {
  db: Db;
  payloads: SpanStore;
}

export interface ElementOptions {
  /** Elements with an idx above this; -1 for all. */
  after: number;
  totalItems: number;
  /** Most elements that will be taken, so that no more rows are read; null for all. */
  limit: number | null;
  state: ItemState | null;
  /** A response with more bytes is not read, and its element says so; null: however large. */
  maxBytes: number | null;
  /**
   * The treatment of a span that cannot be read, or is not what was written. `render` writes the element of "Results" in
   * docs/spec/native-api.md with the reason, `throw` ends with UnreadableSpan, `throw_missing` only when the object
   * does not exist.
   */
  onBadSpan: 'render' | 'throw' | 'throw_missing';
  /** How much a load may hold; without it as much as is fast. */
  share?: StreamShare;
  /** The source of chunks, if the reader of the blocks returns them. */
  memory?: ChunkMemory;
}

/** A stored response that could not be read back. */
export class UnreadableSpan extends Error {
  readonly idx: number;
  /** The object does not exist: it was deleted with its batch or by compaction, or it was lost. */
  readonly missing: boolean;

  constructor(idx: number, reason: string, missing: boolean) {
    super(`output of item ${idx}: ${reason}`);
    this.name = 'UnreadableSpan';
    this.idx = idx;
    this.missing = missing;
  }
}

/** Rows of the first query: few, for the first byte's sake. The next ones have up to GROWTH times as many as the last. */
const FIRST_ROWS = 256;
const GROWTH = 4;
/** Rows of one query, and the bytes that limit them: the longer their reading takes, the older they are. */
const LEAST_ROWS = 1024;
const MOST_ROWS = 8192;
const ROWS_BYTES = 16 * 1024 * 1024;
/** The rows of a stream with less than the largest share are as many fewer. */
const FULL_SHARE = WHOLE_SHARE.loadBytes();
/** The most bytes that an element has around its response. */
const FRAME_BYTES = 64;
/** Bytes between the responses of a load are read as well. */
const GAP_BYTES = 512 * 1024;
/** The reason why an element has no response: the texts of `maxBytes`. */
export const TOO_LARGE = 'larger than one answer here can be';

const COMPLETED = ITEM_STATES.indexOf('completed');
const DISCARDED = ITEM_STATES.indexOf('discarded');

/** Some rows of one query: those from `from` up to, but not including, `to`. */
interface Load {
  rows: ResultRows;
  from: number;
  to: number;
  bytes: number;
  /** The most that they may be, except for one larger response. */
  maxBytes: number;
  /** How many discarded rows come before them. */
  discarded: number;
}

/**
 * The elements of a batch from its item rows and segments, in idx order, some MiB at a time. Each span is checked
 * against its CRC32 before its element is begun. No transaction spans the calls: rows are of the moment they are read, and
 * a caller that needs all of them checks that none is missing (a batch may be deleted meanwhile).
 */
export async function* resultElements(
  deps: ElementDeps,
  batchId: string,
  options: ElementOptions,
): AsyncGenerator<ElementBlock> {
  // Blocks are copies of what was read: of two loads at a time each can use a memory of its own again and again.
  let scratch: Scratch = { memory: null, size: 0, release: null };
  let spare: Scratch = { memory: null, size: 0, release: null };
  let loading: Promise<ElementBlock> | null = null;
  for await (const part of readRows(deps.db, batchId, options)) {
    scratch.size = part.maxBytes + GAP_BYTES;
    const next = load(deps.payloads, part, options, scratch);
    next.catch(() => {}); // awaited in the next round, unless the reader has gone by then
    [scratch, spare] = [spare, scratch];
    if (loading) yield await loading;
    loading = next;
  }
  if (loading) yield await loading;
}

/** Rows in loads that hold at most the stream's share of responses, or one larger one. The next rows come while these load. */
async function* readRows(db: Db, batchId: string, options: ElementOptions): AsyncGenerator<Load> {
  const { state, totalItems } = options;
  let left = options.limit ?? Number.POSITIVE_INFINITY;
  const query = (from: number, size: number) => {
    const to = Math.min(from + size, totalItems) - 1;
    const rows = readResultRows(db, { batchId, from, to, state });
    rows.catch(() => {}); // awaited in the next round, unless the reader has gone by then
    return { rows, to };
  };
  let from = options.after + 1;
  let size = FIRST_ROWS;
  let next = from < totalItems && left > 0 ? query(from, size) : null;
  while (next) {
    const rows = await next.rows;
    const given = Math.min(rows.count, left);
    from = next.to + 1;
    left -= given;
    const share = (options.share ?? WHOLE_SHARE).loadBytes;
    size = nextSize(rows, size, share() / FULL_SHARE);
    next = from < totalItems && left > 0 ? query(from, size) : null;
    yield* splitBySize(rows, given, options.maxBytes ?? Number.POSITIVE_INFINITY, share);
  }
}

/**
 * How many rows to ask for next. As many as possible. With 2000 at a time the answers for 50,000 items, half of them open,
 * kept a reader waiting for up to half of its time on a busy machine.
 */
function nextSize(rows: ResultRows, last: number, part: number): number {
  let bytes = 0;
  for (let i = 0; i < rows.count; i++) if (rows.state[i] === COMPLETED) bytes += rows.length[i]!;
  const fit = bytes === 0 ? MOST_ROWS : Math.floor((ROWS_BYTES * rows.count) / bytes);
  const most = Math.max(FIRST_ROWS, Math.floor(MOST_ROWS * part));
  return Math.min(most, Math.max(LEAST_ROWS, Math.min(fit, last * GROWTH)));
}

function* splitBySize(
  rows: ResultRows,
  count: number,
  maxBytes: number,
  share: StreamShare['loadBytes'],
): Generator<Load> {
  let load: Load = { rows, from: 0, to: 0, bytes: 0, maxBytes: share(), discarded: 0 };
  let discarded = 0;
  for (let i = 0; i < count; i++) {
    const length = rows.state[i] === COMPLETED && rows.length[i]! <= maxBytes ? rows.length[i]! : 0;
    if (load.bytes + length > load.maxBytes && i > load.from) {
      yield load;
      load = { rows, from: i, to: i, bytes: 0, maxBytes: share(), discarded };
    }
    load.to = i + 1;
    load.bytes += length;
    if (rows.state[i] === DISCARDED) discarded++;
  }
  if (load.to > load.from) yield load;
}

async function load(store: SpanStore, part: Load, options: ElementOptions, scratch: Scratch): Promise<ElementBlock> {
  const { rows, from, to } = part;
  const most = options.maxBytes ?? Number.POSITIVE_INFINITY;
  const wanted: number[] = [];
  for (let i = from; i < to; i++) if (rows.state[i] === COMPLETED && rows.length[i]! <= most) wanted.push(i);
  try {
    const bodies = await readSpans(store, rows, wanted, scratch);
    await checkLarge(bodies, (position) => rows.crc[wanted[position]!]!);
    return render(part, bodies, options);
  } finally {
    scratch.release?.();
    scratch.release = null;
  }
}

/** `bodies` are those of the completed items that are not too large, in idx order. */
function render(
  { rows, from, to, bytes, discarded }: Load,
  bodies: readonly (Buffer | Error)[],
  { onBadSpan, maxBytes, memory }: ElementOptions,
): ElementBlock {
  const most = maxBytes ?? Number.POSITIVE_INFINITY;
  const writer = blockWriter(bytes + FRAME_BYTES * (to - from), memory?.take);
  let error = discarded;
  let body = 0;
  for (let i = from; i < to; i++) {
    const idx = rows.idx[i]!;
    const state = rows.state[i]!;
    if (state === DISCARDED) writer.discarded(idx, rows.errors[error++]!);
    else if (state !== COMPLETED) writer.bare(idx, state);
    else if (rows.length[i]! > most) writer.failed(idx, TOO_LARGE);
    else {
      const read = checked(bodies[body++]!, rows.crc[i]!);
      if (Buffer.isBuffer(read)) {
        writer.response(idx, read);
        continue;
      }
      const { reason, missing } = spanFault(read);
      if (onBadSpan === 'throw' || (onBadSpan === 'throw_missing' && missing)) {
        throw new UnreadableSpan(idx, reason, missing);
      }
      writer.failed(idx, reason);
    }
  }
  return writer.done();
}
