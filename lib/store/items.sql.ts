import type { ItemState } from '../batch/batch.ts';
import type { ErrorKind } from '../usage/event.ts';
import type { Db } from './db.ts';

/** Where each item's bytes stand in the batch's input object; index is the item's idx. */
export interface ItemSpans {
  count: number;
  offsets: ArrayLike<number> & { join(separator: string): string };
  lengths: ArrayLike<number> & { join(separator: string): string };
}

const INSERT_ITEMS = `
  insert into batch_items (batch_id, idx, input_offset, input_length, input_crc)
  select $1::uuid, n.idx - 1, n.input_offset, n.input_length, n.input_crc
  from unnest($2::bigint[], $3::int[], $4::bigint[])
    with ordinality as n(input_offset, input_length, input_crc, idx)`;

/** Inserts all items of a batch, in one statement of three arrays: idx follows from their order. */
export async function insertItems(db: Db, batchId: string, spans: ItemSpans, crcs: Uint32Array): Promise<void> {
  const list = (values: { join(separator: string): string }) => `{${values.join(',')}}`;
  await db.query({
    name: 'insert_items',
    text: INSERT_ITEMS,
    values: [batchId, list(spans.offsets), list(spans.lengths), list(crcs)],
  });
}

/** What the results of one item are made of. */
export interface OutcomeRow {
  idx: number;
  state: ItemState;
  segment_id: string | null;
  output_offset: number | null;
  output_length: number | null;
  output_crc: number | null;
  error: string | null;
}

// By a range of idx, not by a limit: with statistics from before a large submit the planner reads and sorts the whole rest
// of the batch for each page (12 ms of 2,000 rows; by range 3).
const READ_OUTCOMES = `
  select idx, state, segment_id, output_offset, output_length, output_crc, error
  from batch_items
  where batch_id = $1::uuid and idx between $2::int and $3::int and ($4::item_state is null or state = $4::item_state)
  order by idx`;

/** The items from idx `from` to `to`, both included, in idx order; only of `state` when given. */
export async function readOutcomes(
  db: Db,
  page: { batchId: string; from: number; to: number; state: ItemState | null },
): Promise<OutcomeRow[]> {
  const values = [page.batchId, page.from, page.to, page.state];
  return (await db.query<OutcomeRow>({ name: 'read_outcomes', text: READ_OUTCOMES, values })).rows;
}

/** What a surface's result files are made of. */
export interface FinalRow extends OutcomeRow {
  /** HTTP status of the last answer; 0 when there was none, null when the event is gone (retention). */
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
