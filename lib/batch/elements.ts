import { crc32 } from 'node:zlib';
import type { Db } from '../store/db.ts';
import { type OutcomeRow, readOutcomes } from '../store/items.sql.ts';
import { PayloadNotFound, type PayloadStore } from '../store/payloads.ts';
import type { ItemState } from './batch.ts';
import { readRanges, readReason } from './ranges.ts';

/** One element of `results`: `head`, then the response's own bytes if it has any, then `tail`. */
export interface ResultElement {
  idx: number;
  state: ItemState;
  head: Buffer;
  body: Buffer | null;
  tail: Buffer;
}

export interface ElementDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'read'>;
}

export interface ElementOptions {
  /** Elements with an idx above this; -1 for all. */
  after: number;
  totalItems: number;
  /** Most elements that will be taken, so that no more rows are read; null for all. */
  limit: number | null;
  state: ItemState | null;
  /**
   * What becomes of a span that cannot be read, or is not what was written: `render` gives the element of design section
   * 5 with the reason, `throw` ends with UnreadableSpan, `throw_missing` only when the object is not there.
   */
  onBadSpan: 'render' | 'throw' | 'throw_missing';
}

/** A stored response that could not be read back. */
export class UnreadableSpan extends Error {
  readonly idx: number;
  /** The object is not there: deleted with its batch, gone after compaction, or lost. */
  readonly missing: boolean;

  constructor(idx: number, reason: string, missing: boolean) {
    super(`output of item ${idx}: ${reason}`);
    this.name = 'UnreadableSpan';
    this.idx = idx;
    this.missing = missing;
  }
}

/** Rows of one query; the first is smaller, for the first byte's sake. */
const FIRST_ROWS = 256;
const ROWS = 2000;
/** Response bytes of one load. Two are in memory at a time (one loads while the other is sent): 8 MiB. */
const LOAD_BYTES = 4 * 1024 * 1024;

const EMPTY = Buffer.alloc(0);
const TAIL = Buffer.from('}');
const MISMATCH = new Error('checksum mismatch');

/**
 * The elements of a batch from its item rows and segments, in idx order, some hundred at a time. Each span is checked
 * against its CRC32 before it is given. No transaction spans the calls: rows are of the moment they are read, and whoever
 * needs all of them checks that none is missing (a batch may be deleted meanwhile).
 */
export async function* resultElements(
  deps: ElementDeps,
  batchId: string,
  options: ElementOptions,
): AsyncGenerator<ResultElement[]> {
  let loading: Promise<ResultElement[]> | null = null;
  for await (const rows of readRows(deps.db, batchId, options)) {
    const next = loadElements(deps.payloads, rows, options.onBadSpan);
    next.catch(() => {}); // awaited in the next round, unless the reader has gone by then
    if (loading) yield await loading;
    loading = next;
  }
  if (loading) yield await loading;
}

/** Rows in groups that hold at most LOAD_BYTES of responses, or one larger one. The next rows come while these load. */
async function* readRows(db: Db, batchId: string, options: ElementOptions): AsyncGenerator<OutcomeRow[]> {
  const { state, totalItems } = options;
  let left = options.limit ?? Number.POSITIVE_INFINITY;
  const query = (from: number, size: number) => {
    const to = Math.min(from + size, totalItems) - 1;
    const rows = readOutcomes(db, { batchId, from, to, state });
    rows.catch(() => {}); // awaited in the next round, unless the reader has gone by then
    return { rows, to };
  };
  let from = options.after + 1;
  let next = from < totalItems && left > 0 ? query(from, FIRST_ROWS) : null;
  while (next) {
    const { rows, to } = next;
    const given = (await rows).slice(0, left);
    from = to + 1;
    left -= given.length;
    next = from < totalItems && left > 0 ? query(from, ROWS) : null;
    yield* groupBySize(given);
  }
}

function* groupBySize(rows: OutcomeRow[]): Generator<OutcomeRow[]> {
  let from = 0;
  let bytes = 0;
  for (let i = 0; i < rows.length; i++) {
    const length = rows[i]!.output_length ?? 0;
    if (bytes + length > LOAD_BYTES && i > from) {
      yield rows.slice(from, i);
      from = i;
      bytes = 0;
    }
    bytes += length;
  }
  if (from < rows.length) yield rows.slice(from);
}

async function loadElements(
  store: Pick<PayloadStore, 'read'>,
  rows: readonly OutcomeRow[],
  onBadSpan: ElementOptions['onBadSpan'],
): Promise<ResultElement[]> {
  const bySegment = new Map<string, OutcomeRow[]>();
  for (const row of rows) {
    if (row.state !== 'completed') continue;
    const same = bySegment.get(row.segment_id!);
    if (same) same.push(row);
    else bySegment.set(row.segment_id!, [row]);
  }
  const bodies = new Map<number, Buffer | Error>();
  await Promise.all(
    [...bySegment].map(async ([id, group]) => {
      const ranges = group.map((row) => ({ offset: row.output_offset!, length: row.output_length! }));
      const read = await readRanges(store, { kind: 'segment', id }, ranges);
      for (let i = 0; i < group.length; i++) bodies.set(group[i]!.idx, checked(read[i]!, group[i]!));
    }),
  );
  return rows.map((row) => {
    const body = bodies.get(row.idx);
    if (!(body instanceof Error)) return elementOf(row, body ?? null);
    const missing = body instanceof PayloadNotFound;
    const reason = body === MISMATCH ? MISMATCH.message : readReason(body);
    if (onBadSpan === 'throw' || (onBadSpan === 'throw_missing' && missing)) {
      throw new UnreadableSpan(row.idx, reason, missing);
    }
    return failedElement(row.idx, reason);
  });
}

function checked(read: Buffer | Error, row: OutcomeRow): Buffer | Error {
  if (read instanceof Error || crc32(read) === row.output_crc) return read;
  return MISMATCH;
}

function elementOf(row: OutcomeRow, body: Buffer | null): ResultElement {
  const { idx, state } = row;
  if (body !== null) {
    return {
      idx,
      state,
      head: Buffer.from(`{"idx":${idx},"state":"${state}","response":`, 'latin1'),
      body,
      tail: TAIL,
    };
  }
  const error = state === 'discarded' ? `,"error":${JSON.stringify(row.error)}` : '';
  return { idx, state, head: Buffer.from(`{"idx":${idx},"state":"${state}"${error}}`), body: null, tail: EMPTY };
}

/** The element of a completed item whose response cannot be given; `reason` is short and names no path. */
export function failedElement(idx: number, reason: string): ResultElement {
  const error = JSON.stringify(`batch item: load output: ${reason}`);
  const head = Buffer.from(`{"idx":${idx},"state":"completed","error":${error}}`);
  return { idx, state: 'completed', head, body: null, tail: EMPTY };
}
