import { setTimeout as delay } from 'node:timers/promises';
import { drainOnce } from './drain.ts';
import type { Bed, BenchDatabase } from './support/bed.ts';
import { type Figure, format } from './support/figure.ts';
import { KEYS } from './support/items.ts';

const DRAINS = 10;
const ITEMS = 20_000;
/** Idle backends report their statistics within ten seconds. */
const STATISTICS_MS = 11_000;
/** The tables with updated or deleted rows. Usage events are inserted and stay. */
const TABLES = ['batch_items', 'batches', 'batch_cursors', 'segment_refs', 'limit_buckets', 'workers'];

interface TableRow {
  updates: number;
  hot: number;
  dead: number;
  live: number;
  vacuums: number;
  bytes: number;
}

/**
 * Runs ten drains of 20,000 items under limits, and measures the size of each table beside its size after a full
 * rewrite. Autovacuum, HOT updates and the fillfactors together must keep the two close.
 */
export async function benchBloat(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream();
  const server = await bed.server({ database, upstream, concurrency: 64 });
  for (let i = 0; i < DRAINS; i++) await drainOnce(server, database, ITEMS, KEYS.limited);
  await delay(STATISTICS_MS);
  await server.stop();
  const figures: Figure[] = [];
  for (const name of TABLES) {
    const grown = await readTable(database, name);
    await database.sql(`vacuum full ${name}`);
    const { bytes } = await readTable(database, name);
    const hot =
      grown.updates === 0 ? '' : `${format((100 * grown.hot) / grown.updates)} % of ${grown.updates} updates HOT, `;
    figures.push({
      name: `${name} after ${DRAINS} drains of ${format(ITEMS)}`,
      value: grown.bytes / Math.max(bytes, 8192),
      unit: 'times',
      comparedWith: `written anew ${kib(bytes)}, this ${kib(grown.bytes)}; ${hot}${grown.dead} dead, ${grown.live} live, ${grown.vacuums} vacuums`,
    });
  }
  return figures;
}

async function readTable({ sql }: BenchDatabase, name: string): Promise<TableRow> {
  const [row] = await sql<TableRow>(
    `select n_tup_upd::float8 as updates, n_tup_hot_upd::float8 as hot, n_dead_tup::float8 as dead,
       n_live_tup::float8 as live, autovacuum_count::float8 as vacuums, pg_total_relation_size(relid)::float8 as bytes
     from pg_stat_user_tables where relname = $1`,
    [name],
  );
  return row!;
}

const kib = (bytes: number) => `${format(bytes / 1024)} KiB`;
