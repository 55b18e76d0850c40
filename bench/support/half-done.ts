import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { uuidv7 } from '../../lib/base/clock.ts';
import { payloadKey } from '../../lib/payloads/payload-store.ts';
import { type Accepted, finalItemsReach, submit } from './batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './bed.ts';
import { submission } from './items.ts';

/**
 * Makes a batch that stays half done, like a running one at that moment. A server ran it for real and was stopped. The
 * server that answers now runs nothing.
 */
export async function halfDone(
  bed: Bed,
  items: number,
  answerBytes: number,
): Promise<{ database: BenchDatabase; server: BenchServer; batch: Accepted }> {
  const database = await bed.database();
  const upstream = await bed.upstream({ answerBytes });
  const runner = await bed.server({ database, upstream, concurrency: 64 });
  const batch = await submit(runner, submission(items));
  await finalItemsReach(database, batch, items / 2);
  await runner.stop();
  const server = await bed.server({ database, concurrency: 0, payloadDir: runner.payloadDir });
  return { database, server, batch };
}

interface CompletedRow {
  idx: number;
  segment_id: string;
  output_offset: number;
  output_length: number;
}

/**
 * Puts the answers of a batch into segments of `each` items, as an upstream that answers slowly leaves them: for real
 * that would take minutes. Returns how many segments exist.
 */
export async function splitSegments(
  { database, server, batch }: { database: BenchDatabase; server: BenchServer; batch: Accepted },
  each: number,
): Promise<number> {
  const rows = await database.sql<CompletedRow>(
    `select idx, segment_id, output_offset, output_length from batch_items
     where batch_id = $1 and state = 'completed' order by segment_id, output_offset`,
    [batch.id],
  );
  const pathOf = (id: string) => join(server.payloadDir, payloadKey({ kind: 'segment', id }));
  const moved = { idx: [] as number[], segment: [] as string[], offset: [] as number[] };
  let from = { id: '', bytes: Buffer.alloc(0) };
  for (let at = 0; at < rows.length; at += each) {
    const id = uuidv7();
    const parts: Buffer[] = [];
    let offset = 0;
    for (const row of rows.slice(at, at + each)) {
      if (row.segment_id !== from.id) from = { id: row.segment_id, bytes: await readFile(pathOf(row.segment_id)) };
      parts.push(from.bytes.subarray(row.output_offset, row.output_offset + row.output_length));
      moved.idx.push(row.idx);
      moved.segment.push(id);
      moved.offset.push(offset);
      offset += row.output_length;
    }
    await mkdir(dirname(pathOf(id)), { recursive: true });
    await writeFile(pathOf(id), Buffer.concat(parts));
  }
  await database.sql(
    `update batch_items i set segment_id = n.segment, output_offset = n.output_offset
     from unnest($2::int[], $3::uuid[], $4::int[]) as n(idx, segment, output_offset)
     where i.batch_id = $1 and i.idx = n.idx`,
    [batch.id, moved.idx, moved.segment, moved.offset],
  );
  await database.sql(
    'insert into segment_refs (segment_id, batch_id) select distinct segment_id, $1::uuid from unnest($2::uuid[]) as s(segment_id)',
    [batch.id, moved.segment],
  );
  return Math.ceil(rows.length / each);
}
