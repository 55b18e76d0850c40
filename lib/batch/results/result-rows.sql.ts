import type { Db } from '../../db/database.ts';
import { ITEM_STATES, type ItemState } from '../../model/batch.ts';
import { uuidOfHex } from '../../model/public-id.ts';
import type { ErrorKind } from '../../model/usage-event.ts';

/**
 * The columns that the results of a range of items are rendered from, in idx order, one array a column. An object for
 * each row was a third of the time that results of a running batch took. `segment` to `crc` are meaningful for
 * completed items only.
 */
export interface ResultRows {
  count: number;
  idx: Int32Array;
  /** Index into ITEM_STATES. */
  state: Uint8Array;
  /** Index into `segmentIds`. */
  segment: Int32Array;
  segmentIds: string[];
  offset: Int32Array;
  length: Int32Array;
  /** -1 where none was kept: it matches nothing. */
  crc: Float64Array;
  /** Texts of the discarded items, in their order. */
  errors: string[];
}

interface PackedRow {
  records: Buffer | null;
  errors: string[] | null;
}

// One row of records instead of a row an item: idx (4 bytes), state (1), and of a completed item segment (16), offset (4),
// length (4), CRC (8), all big endian. 50,000 items cost the client 13 ms of CPU that way, as rows 70, and Postgres the
// same. By a range of idx, not by a limit. With statistics from before a large submit the planner reads and sorts the
// whole rest of the batch for each page (12 ms of 2,000 rows; by range 3).
const READ_OUTCOMES = `
  select
    string_agg(
      int4send(idx) || case state
        when 'available' then '\\x00'::bytea
        when 'running' then '\\x01'::bytea
        when 'completed' then '\\x02'::bytea || uuid_send(segment_id) || int4send(coalesce(output_offset, 0))
          || int4send(output_length) || int8send(coalesce(output_crc, -1))
        when 'discarded' then '\\x03'::bytea
        else '\\x04'::bytea
      end, ''::bytea order by idx) as records,
    json_agg(error order by idx) filter (where state = 'discarded') as errors
  from batch_items
  where batch_id = $1::uuid and idx between $2::int and $3::int and ($4::item_state is null or state = $4::item_state)`;

const OPEN_BYTES = 5;
const COMPLETED_BYTES = 37;
const COMPLETED = ITEM_STATES.indexOf('completed');

/** The items from idx `from` to `to`, both included, in idx order; only of `state` when given. */
export async function readResultRows(
  db: Db,
  page: { batchId: string; from: number; to: number; state: ItemState | null },
): Promise<ResultRows> {
  const values = [page.batchId, page.from, page.to, page.state];
  const { rows } = await db.query<PackedRow>({ name: 'read_outcomes', text: READ_OUTCOMES, values });
  return unpack(rows[0]!.records ?? Buffer.alloc(0), page.to - page.from + 1, rows[0]!.errors ?? []);
}

function unpack(records: Buffer, most: number, errors: string[]): ResultRows {
  const idx = new Int32Array(most);
  const state = new Uint8Array(most);
  const segment = new Int32Array(most);
  const offset = new Int32Array(most);
  const length = new Int32Array(most);
  const crc = new Float64Array(most);
  const segmentIds: string[] = [];
  const known = new Map<string, number>();
  const view = new DataView(records.buffer, records.byteOffset, records.length);
  let count = 0;
  let last = -1;
  let number = 0;
  for (let at = 0; at < records.length; count++) {
    idx[count] = view.getInt32(at);
    state[count] = view.getUint8(at + 4);
    if (state[count] !== COMPLETED) {
      at += OPEN_BYTES;
      continue;
    }
    // Neighbours were mostly committed together.
    if (last === -1 || records.compare(records, last + 5, last + 21, at + 5, at + 21) !== 0) {
      const key = records.toString('latin1', at + 5, at + 21);
      number = known.get(key) ?? segmentIds.push(uuidAt(records, at + 5)) - 1;
      known.set(key, number);
    }
    last = at;
    segment[count] = number;
    offset[count] = view.getInt32(at + 21);
    length[count] = view.getInt32(at + 25);
    crc[count] = view.getInt32(at + 29) === 0 ? view.getUint32(at + 33) : -1;
    at += COMPLETED_BYTES;
  }
  return { count, idx, state, segment, segmentIds, offset, length, crc, errors };
}

function uuidAt(records: Buffer, at: number): string {
  return uuidOfHex(records.toString('hex', at, at + 16));
}

/** One item as a surface's result files show it. */
export interface FinalRow {
  idx: number;
  state: ItemState;
  segment_id: string | null;
  output_offset: number | null;
  output_length: number | null;
  output_crc: number | null;
  error: string | null;
  /** HTTP status of the last answer; 0 when there was none, null when the event was deleted (retention). */
  status: number | null;
  error_kind: ErrorKind | null;
}

const READ_FINALS = `
  select i.idx, i.state, i.segment_id, i.output_offset, i.output_length, i.output_crc, i.error, e.status, e.error_kind
  from batch_items i left join usage_events e on e.batch_id = i.batch_id and e.batch_idx = i.idx
  where i.batch_id = $1::uuid and i.idx between $2::int and $3::int
  order by i.idx`;

/** The items from idx `from` to `to`, both included, in idx order, with what their usage events say of the answer. */
export async function readFinals(db: Db, page: { batchId: string; from: number; to: number }): Promise<FinalRow[]> {
  const values = [page.batchId, page.from, page.to];
  return (await db.query<FinalRow>({ name: 'read_finals', text: READ_FINALS, values })).rows;
}
