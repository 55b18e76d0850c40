import { join } from 'node:path';
import { findEmbedded } from '../lib/postgres/find.ts';
import { startServer } from '../test/support/server.ts';
import { allCompleted, finalItems, finalItemsReach, finished, submit } from './support/batches.ts';
import { type Bed, type BenchDatabase, openDatabase } from './support/bed.ts';
import type { Figure } from './support/figure.ts';
import { catalogOf, KEYS, submission, UPSTREAM_KEY } from './support/items.ts';

const ITEMS = 10_000;
const CONCURRENCY = 64;

/** kill -9 of a server with its own Postgres in mid-run: when work continues after the next start, and the cost. */
export async function benchRestart(bed: Bed): Promise<Figure[]> {
  const upstream = await bed.upstream({ delayMs: 20, countUsers: true });
  const home = await bed.directory();
  const start = () =>
    startServer({
      home,
      dsn: null,
      catalog: catalogOf(upstream.url),
      env: {
        RELAY_BATCH_CONCURRENCY: String(CONCURRENCY),
        RELAY_LOG_LEVEL: 'warn',
        UPSTREAM_KEY,
        KEY_PLAIN: KEYS.plain,
        KEY_LIMITED: KEYS.limited,
      },
    });
  const first = { ...(await start()), payloadDir: '' };
  const database = await connect(bed, join(home, 'data'));
  const batch = await submit(first, submission(ITEMS));
  await finalItemsReach(database, batch, ITEMS / 3);
  await first.kill();
  const done = await finalItems(database, batch);
  const killed = performance.now();
  const second = await start();
  bed.defer(() => second.stop());
  await finalItemsReach(database, batch, done + 1);
  const seconds = (performance.now() - killed) / 1000;
  await finished(database, batch);
  await allCompleted(database, batch, ITEMS);

  const [events] = await database.sql<{ n: number }>(
    'select count(*)::int as n from usage_events where batch_id = $1',
    [batch.id],
  );
  const { users } = await upstream.stats();
  const twice = Object.values(users).filter((count) => count > 1).length;
  const missing = ITEMS - Object.keys(users).length;
  return [
    {
      name: 'work continues after kill -9 of the server',
      value: seconds,
      unit: 's',
      comparedWith: `the next start included; ${done} of ${ITEMS} items were final`,
      target: { atMost: 45 },
    },
    {
      name: '  items lost, or recorded twice',
      value: Math.abs((events?.n ?? 0) - ITEMS) + missing,
      unit: 'items',
      comparedWith: `usage events ${events?.n}, items ${ITEMS}`,
      target: { atMost: 0 },
    },
    {
      name: '  items sent upstream a second time',
      value: twice,
      unit: 'items',
      comparedWith: `${CONCURRENCY} slots, and outcomes that were not committed yet`,
    },
  ];
}

async function connect(bed: Bed, dataDir: string): Promise<BenchDatabase> {
  const dsn = await findEmbedded(dataDir);
  if (dsn === null) throw new Error(`no Postgres runs in ${dataDir}`);
  return openDatabase(bed, dsn);
}
