import { startServer } from '../test/support/server.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median } from './support/figure.ts';

const ROUNDS = 3;

/** A start on a data dir that exists, with its own Postgres, until `/healthz` answers 200; beside the first start. */
export async function benchStart(bed: Bed): Promise<Figure[]> {
  const home = await bed.directory();
  const start = async () => {
    const begin = performance.now();
    const server = await startServer({ home, dsn: null, catalog: '', env: { RELAY_LOG_LEVEL: 'warn' } });
    const seconds = (performance.now() - begin) / 1000;
    await server.stop();
    return seconds;
  };
  const first = await start();
  const later: number[] = [];
  for (let i = 0; i < ROUNDS; i++) later.push(await start());
  return [
    {
      name: 'start to ready, existing data dir',
      value: median(later),
      unit: 's',
      comparedWith: `the first start, which makes the database: ${format(first)} s`,
      target: { atMost: 2 },
    },
  ];
}
