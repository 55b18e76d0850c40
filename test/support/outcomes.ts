import { crc32 } from 'node:zlib';
import { uuidv7 } from '../../lib/base/clock.ts';
import type { Database } from '../../lib/db/database.ts';
import type { ItemState } from '../../lib/model/batch.ts';
import type { PayloadStore } from '../../lib/payloads/payload-store.ts';

export interface Outcome {
  idx: number;
  state: Extract<ItemState, 'completed' | 'discarded' | 'cancelled'>;
  /** Of a completed item, or the error body that is kept of a discarded one. */
  body?: Buffer | string;
  /** Of a discarded one. */
  error?: string;
}

interface Stores {
  database: { db: Database };
  payloads: PayloadStore;
}

/** Makes items final as a group commit would: one segment, one transaction. Returns the segment's id. */
export async function finish({ database, payloads }: Stores, batchId: string, outcomes: Outcome[]): Promise<string> {
  const segment = uuidv7();
  const bodies = outcomes.map((o) => Buffer.from(o.body ?? ''));
  await payloads.write({ kind: 'segment', id: segment }, bodies.length > 0 ? bodies : [Buffer.from('-')]);
  let at = 0;
  const spans = bodies.map((body) => {
    const offset = at;
    at += body.length;
    return { offset, length: body.length, crc: crc32(body) };
  });
  await database.db.transaction(async (tx) => {
    await tx.query({
      name: 'test_finish_items',
      text: `update batch_items i set state = n.state::item_state, finalized_at = clock_timestamp(), error = n.error,
          segment_id = case when n.state = 'completed' or n.len > 0 then $2::uuid end,
          output_offset = case when n.state = 'completed' or n.len > 0 then n.off end,
          output_length = case when n.state = 'completed' or n.len > 0 then n.len end,
          output_crc = case when n.state = 'completed' or n.len > 0 then n.crc end
        from unnest($3::int[], $4::text[], $5::text[], $6::int[], $7::int[], $8::bigint[])
          as n(idx, state, error, off, len, crc)
        where i.batch_id = $1::uuid and i.idx = n.idx`,
      values: [
        batchId,
        segment,
        outcomes.map((o) => o.idx),
        outcomes.map((o) => o.state),
        outcomes.map((o) => o.error ?? null),
        spans.map((s) => s.offset),
        spans.map((s) => s.length),
        spans.map((s) => s.crc),
      ],
    });
    await tx.query({
      name: 'test_count_down',
      text: `update batches set open_items = open_items - $2::int,
        completed_at = case when open_items = $2::int then clock_timestamp() end where id = $1::uuid`,
      values: [batchId, outcomes.length],
    });
  });
  return segment;
}
