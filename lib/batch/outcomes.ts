import { crc32 } from 'node:zlib';
import type { Db } from '../store/db.ts';
import { type FinalRow, readFinals } from '../store/finals.sql.ts';
import type { PayloadStore } from '../store/payloads.ts';
import type { ErrorKind } from '../usage/event.ts';
import type { ItemState } from './batch.ts';
import { readRanges, readReason } from './ranges.ts';

/** How one item of a finished batch ended. */
export interface ItemOutcome {
  idx: number;
  state: ItemState;
  /** The text of a discarded item, `batch item: ` included; null for the others. */
  error: string | null;
  errorKind: ErrorKind | null;
  /** The upstream's answer, or, of a discarded item, the error body that was kept; null without one. */
  body: Buffer | null;
  /** HTTP status of the last upstream answer; 0 when there was none, null when nobody knows any more. */
  status: number | null;
}

export interface OutcomeDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'read'>;
}

const ROWS = 1000;
/** Answers of one group; two groups are in memory at a time. */
const GROUP_BYTES = 4 * 1024 * 1024;

/**
 * The outcomes of a finished batch in idx order, some hundred at a time, each body checked against its CRC32: what the
 * result files of the OpenAI and Anthropic surfaces are written from. A body that cannot be read, or an item that is
 * missing (the batch was deleted), throws: such a file is not written.
 */
export async function* batchOutcomes(
  deps: OutcomeDeps,
  batchId: string,
  totalItems: number,
): AsyncGenerator<ItemOutcome[]> {
  let next = readFinals(deps.db, { batchId, from: 0, to: Math.min(ROWS, totalItems) - 1 });
  for (let from = 0; from < totalItems; from += ROWS) {
    const rows = await next;
    const expected = Math.min(ROWS, totalItems - from);
    if (rows.length !== expected) throw new Error('batch is gone or has a gap');
    const after = from + ROWS;
    if (after < totalItems) {
      next = readFinals(deps.db, { batchId, from: after, to: Math.min(after + ROWS, totalItems) - 1 });
      next.catch(() => {}); // awaited in the next round, unless the reader has gone by then
    }
    for (const group of bySize(rows)) yield await loadGroup(deps.payloads, group);
  }
}

function* bySize(rows: readonly FinalRow[]): Generator<FinalRow[]> {
  let group: FinalRow[] = [];
  let bytes = 0;
  for (const row of rows) {
    const length = row.output_length ?? 0;
    if (bytes + length > GROUP_BYTES && group.length > 0) {
      yield group;
      group = [];
      bytes = 0;
    }
    group.push(row);
    bytes += length;
  }
  if (group.length > 0) yield group;
}

async function loadGroup(payloads: OutcomeDeps['payloads'], rows: readonly FinalRow[]): Promise<ItemOutcome[]> {
  const bySegment = new Map<string, FinalRow[]>();
  for (const row of rows) {
    if (row.segment_id === null) continue;
    const same = bySegment.get(row.segment_id);
    if (same) same.push(row);
    else bySegment.set(row.segment_id, [row]);
  }
  const bodies = new Map<number, Buffer>();
  await Promise.all(
    [...bySegment].map(async ([id, group]) => {
      const ranges = group.map((row) => ({ offset: row.output_offset!, length: row.output_length! }));
      const read = await readRanges(payloads, { kind: 'segment', id }, ranges);
      group.forEach((row, i) => {
        const bytes = read[i]!;
        if (bytes instanceof Error)
          throw new Error(`output of item ${row.idx}: ${readReason(bytes)}`, { cause: bytes });
        if (crc32(bytes) !== row.output_crc) throw new Error(`output of item ${row.idx}: checksum mismatch`);
        bodies.set(row.idx, bytes);
      });
    }),
  );
  return rows.map(({ idx, state, error, error_kind: errorKind, status }) => {
    return { idx, state, error, errorKind, status, body: bodies.get(idx) ?? null };
  });
}
