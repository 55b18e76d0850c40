import { randomUUID } from 'node:crypto';
import { insertWorker } from '../lib/worker/lease/lease.sql.ts';
import type { Bed, BenchDatabase } from './support/bed.ts';
import { CLAIM, openClaims } from './support/claimer.ts';
import { type Figure, format, quantile, timed } from './support/figure.ts';

const BATCHES = 200;
const CLAIMS = 150;

/** Claims of 64 items with 1,000,000 pending in 200 batches, beside the same with 10,000 pending. */
export async function benchClaim(bed: Bed): Promise<Figure[]> {
  const few = await createScene(bed, 10_000);
  const many = await createScene(bed, 1_000_000);
  const times = { few: [] as number[], many: [] as number[] };
  for (let i = 0; i < CLAIMS; i++) {
    times.few.push(await timed(few));
    times.many.push(await timed(many));
  }
  const [p99few, p99many] = [quantile(times.few, 0.99), quantile(times.many, 0.99)];
  const medians = `medians ${format(quantile(times.few, 0.5))} and ${format(quantile(times.many, 0.5))} ms`;
  return [
    {
      name: `claim of ${CLAIM} with 1,000,000 pending, p99`,
      value: p99many / p99few,
      unit: 'times',
      comparedWith: `10,000 pending ${format(p99few)} ms, 1,000,000 ${format(p99many)} ms; ${medians}`,
      target: { atMost: 2 },
    },
  ];
}

/** A database with `pending` items, and the function that claims for one worker: each call takes the next 64. */
async function createScene(bed: Bed, pending: number): Promise<() => Promise<void>> {
  const database = await bed.database();
  await fill(database, pending);
  const { db, claim } = openClaims(bed, database);
  const worker = randomUUID();
  await insertWorker(db, worker, { instance: 'bench', slots: 8, invocation: false });
  return async () => void (await claim(worker));
}

async function fill({ sql }: BenchDatabase, pending: number): Promise<void> {
  const each = pending / BATCHES;
  await sql(
    `insert into batches (id, owner, shape, total_items, open_items, input_id, credential_kind, credential_id)
     select gen_random_uuid(), 'owner-' || n % 20, 'openai', $2, $2, gen_random_uuid(), 'key', 'bench'
     from generate_series(1, $1::int) as n`,
    [BATCHES, each],
  );
  await sql('insert into batch_cursors (batch_id, owner, total_items) select id, owner, total_items from batches');
  await sql(
    `insert into batch_items (batch_id, idx, input_offset, input_length, input_crc)
     select id, idx, idx * 180, 180, 0 from batches, generate_series(0, total_items - 1) as idx`,
  );
  await sql('vacuum analyze batches, batch_cursors, batch_items');
}
