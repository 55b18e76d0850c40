import type { Db } from '../../db/database.ts';

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
