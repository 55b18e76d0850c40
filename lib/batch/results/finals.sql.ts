import type { Db } from '../../db/database.ts';
import type { ItemState } from '../../model/batch.ts';
import type { ErrorKind } from '../../model/usage-event.ts';

/** What a surface's result files are made of. */
export interface FinalRow {
  idx: number;
  state: ItemState;
  segment_id: string | null;
  output_offset: number | null;
  output_length: number | null;
  output_crc: number | null;
  error: string | null;
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
