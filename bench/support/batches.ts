import { setTimeout as delay } from 'node:timers/promises';
import { request } from 'undici';
import type { BenchDatabase, BenchServer } from './bed.ts';
import { KEYS } from './items.ts';

/** A batch that was accepted. */
export interface Accepted {
  id: string;
  /** The time when its 202 arrived, epoch ms. */
  at: number;
}

/** Calls the API and returns the body of the answer. Throws if the status is not 2xx. */
export async function call(
  server: BenchServer,
  method: 'GET' | 'POST',
  path: string,
  body?: Buffer,
  key = KEYS.plain,
): Promise<Buffer> {
  const response = await request(server.url + path, {
    method,
    headers: { authorization: `Bearer ${key}` },
    ...(body === undefined ? {} : { body }),
  });
  const answer = Buffer.from(await response.body.arrayBuffer());
  if (response.statusCode >= 300) throw new Error(`${method} ${path}: ${response.statusCode} ${answer}`);
  return answer;
}

/** Submits a body of `submission()`. */
export async function submit(server: BenchServer, body: Buffer, key = KEYS.plain): Promise<Accepted> {
  const answer = await call(server, 'POST', '/v1/batches', body, key);
  return { at: Date.now(), id: (JSON.parse(answer.toString()) as { id: string }).id };
}

/**
 * Waits for the end of a batch and of its compaction, so that the next measurement has the machine to itself. Returns
 * when its last item was final, in epoch ms by Postgres' clock, which is this machine's. It queries one row of
 * Postgres, because the server is busy with what is measured.
 */
export async function finished(database: BenchDatabase, { id }: Accepted): Promise<number> {
  for (;;) {
    const [row] = await database.sql<{ at: number | null; compacted: boolean }>(
      `select extract(epoch from completed_at)::float8 * 1000 as at, results_id is not null as compacted
       from batches where id = $1`,
      [id],
    );
    if (row?.at != null && row.compacted) return row.at;
    await delay(50);
  }
}

/** Returns how many items of a batch are final. */
export async function finalItems(database: BenchDatabase, { id }: Accepted): Promise<number> {
  const [row] = await database.sql<{ n: number }>('select total_items - open_items as n from batches where id = $1', [
    id,
  ]);
  return row?.n ?? 0;
}

/** Waits until at least `count` items are final. */
export async function finalItemsReach(database: BenchDatabase, batch: Accepted, count: number): Promise<void> {
  while ((await finalItems(database, batch)) < count) await delay(10);
}

/** Throws unless every item of the batch was completed: a fast failure must not count as a result. */
export async function allCompleted(database: BenchDatabase, { id }: Accepted, count: number): Promise<void> {
  const rows = await database.sql<{ state: string; n: number }>(
    'select state::text, count(*)::int as n from batch_items where batch_id = $1 group by 1',
    [id],
  );
  if (rows.length === 1 && rows[0]!.state === 'completed' && rows[0]!.n === count) return;
  throw new Error(`${count} items should be completed: ${JSON.stringify(rows)}`);
}
