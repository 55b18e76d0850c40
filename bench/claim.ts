import { randomUUID } from 'node:crypto';
import { createLog } from '../lib/log.ts';
import { createDb } from '../lib/store/db.ts';
import { insertWorker } from '../lib/store/lease.sql.ts';
import { createClaimer } from '../lib/worker/claim.ts';
import type { Bed, BenchDatabase } from './support/bed.ts';
import { type Figure, format, quantile, timed } from './support/figure.ts';

const BATCHES = 200;
const CLAIMS = 150;
const SLOTS = 64;

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
      name: 'claim of 64 with 1,000,000 pending, p99',
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
  const db = createDb({
    dsn: database.dsn,
    max: 1,
    prepared: true,
    applicationName: 'bench',
    log: createLog('silent'),
  });
  bed.defer(() => db.close());
  const worker = randomUUID();
  await insertWorker(db, worker, 'bench');
  const claimer = createClaimer({
    db,
    instance: 'bench',
    random: Math.random,
    refreshCatalog: async () => {},
    catalogVersion: () => Number.MAX_SAFE_INTEGER,
    observe: () => {},
  });
  return async () => {
    const { items } = await claimer.claim(worker, SLOTS);
    if (items.length !== SLOTS) throw new Error(`claimed ${items.length} items instead of ${SLOTS}`);
  };
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
