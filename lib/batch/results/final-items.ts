import { checksum } from '../../base/turns.ts';
import type { Db } from '../../db/database.ts';
import type { ItemState } from '../../model/batch.ts';
import type { ErrorKind } from '../../model/usage-event.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { readRanges, readReason } from '../../payloads/ranges.ts';
import { isStoreAway } from '../../payloads/store-away.ts';
import { type FinalRow, readFinals } from './result-rows.sql.ts';

/** How one item of a finished batch ended. */
export interface FinalItem {
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

export interface FinalItemDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'read'>;
}

const ROWS = 1000;
/** Answers of one group; two groups are in memory at a time. */
const GROUP_BYTES = 4 * 1024 * 1024;

/** A lost or spoilt answer is waited for so long after the end of its batch: stores may be late to show what they have. */
const LATE_SECONDS = 120;
/** And one that a store which seems to be away refuses (a bad spot of a disk looks like that). */
const AWAY_SECONDS = 86_400;

/**
 * The outcomes of a finished batch in idx order, some hundred at a time, each body checked against its CRC32. The
 * result files of the OpenAI and Anthropic surfaces are written from them. A body that cannot be read throws, so that
 * the file is written later. When the batch has been finished for two minutes (a day, if the store may only be away)
 * the item says so instead, as in native results, and the others are there. An item that is missing (the batch was
 * deleted) throws.
 */
export async function* readFinalItems(
  deps: FinalItemDeps,
  { id: batchId, totalItems, finishedSeconds }: { id: string; totalItems: number; finishedSeconds: number },
): AsyncGenerator<FinalItem[]> {
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
    for (const group of bySize(rows)) yield await loadGroup(deps.payloads, group, finishedSeconds);
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

async function loadGroup(
  payloads: FinalItemDeps['payloads'],
  rows: readonly FinalRow[],
  finishedSeconds: number,
): Promise<FinalItem[]> {
  const bySegment = new Map<string, FinalRow[]>();
  for (const row of rows) {
    if (row.segment_id === null) continue;
    const same = bySegment.get(row.segment_id);
    if (same) same.push(row);
    else bySegment.set(row.segment_id, [row]);
  }
  const bodies = new Map<number, Buffer | UnreadableBody>();
  await Promise.all(
    [...bySegment].map(async ([id, group]) => {
      const ranges = group.map((row) => ({ offset: row.output_offset!, length: row.output_length! }));
      const read = await readRanges(payloads, { kind: 'segment', id }, ranges);
      for (const [i, row] of group.entries()) {
        const body = await checked(read[i]!, row);
        if (!Buffer.isBuffer(body) && finishedSeconds < body.waitSeconds) {
          throw new Error(`output of item ${row.idx}: ${body.reason}`);
        }
        bodies.set(row.idx, body);
      }
    }),
  );
  return rows.map(({ idx, state, error, error_kind: errorKind, status }) => {
    const body = bodies.get(idx) ?? null;
    if (body === null || Buffer.isBuffer(body)) return { idx, state, error, errorKind, status, body };
    const lost = `batch item: load output: ${body.reason}`;
    return state === 'completed'
      ? { idx, state: 'discarded', error: lost, errorKind: 'internal', status: null, body: null }
      : { idx, state, error, errorKind, status, body: null };
  });
}

/** The reason why bytes are missing, and for how long they may still come. */
interface UnreadableBody {
  reason: string;
  waitSeconds: number;
}

async function checked(read: Buffer | Error, row: FinalRow): Promise<Buffer | UnreadableBody> {
  if (read instanceof Error) {
    return { reason: readReason(read), waitSeconds: isStoreAway(read) ? AWAY_SECONDS : LATE_SECONDS };
  }
  return (await checksum(read)) === row.output_crc ? read : { reason: 'checksum mismatch', waitSeconds: LATE_SECONDS };
}
