import { readFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import type { Bed } from './support/bed.ts';
import type { Figure } from './support/figure.ts';

const SETTLE_MS = 3000;
const WATCH_MS = 30_000;

/** The statements of a server that has nothing to do, counted in Postgres' own log. */
export async function benchIdle(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const [{ name }] = (await database.sql<{ name: string }>('select current_database() as name')) as [{ name: string }];
  await database.sql(`alter database ${name} set log_statement = 'all'`);
  await bed.server({ database, concurrency: 8 });
  await delay(SETTLE_MS);
  const before = await statements(bed.postgresLog);
  await delay(WATCH_MS);
  const after = await statements(bed.postgresLog);
  const seen = after.slice(before.length);
  return [
    {
      name: 'statements of an idle replica in 5 s',
      value: (seen.length * 5000) / WATCH_MS,
      unit: 'queries',
      comparedWith: `${seen.length} in ${WATCH_MS / 1000} s: ${countEach(seen)}`,
      target: { atMost: 1 },
    },
  ];
}

/** One entry a statement: its name, or its first words. */
async function statements(logFile: string): Promise<string[]> {
  const log = await readFile(logFile, 'utf8');
  return [...log.matchAll(/LOG: +(?:execute ([^:<]+):|(?:execute <unnamed>|statement): *(\S+ ?\S*))/g)].map(
    ([, name, words]) => name ?? words ?? '',
  );
}

function countEach(names: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} ${name}`).join(', ');
}
