import { join } from 'node:path';
import { call, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format, median, timed } from './support/figure.ts';
import { submission } from './support/items.ts';
import { peakGrowth } from './support/process.ts';
import { writeDurably } from './support/write-durably.ts';

const ITEMS = 50_000;
const BODY_BYTES = 32 * 1024 * 1024;
const PAIRS = 3;

/** A submit of 50,000 items and 32 MiB, beside JSON.parse of the body and one fsynced write of it. */
export async function benchSubmit(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const server = await bed.server({ database, concurrency: 0 });
  const directory = await bed.directory();
  const body = submission(ITEMS, Math.floor(BODY_BYTES / ITEMS) - 1);
  await submit(server, submission(2000)); // warms up

  const pairs: { plain: number; ours: number }[] = [];
  let peak = 0;
  for (let i = 0; i < PAIRS; i++) {
    const plain = await timed(async () => {
      JSON.parse(body.toString());
      await writeDurably(join(directory, `body-${i}`), body);
    });
    let ours = 0;
    const growth = await peakGrowth(server.pid, async () => {
      ours = await timed(() => call(server, 'POST', '/v1/batches', body));
    });
    pairs.push({ plain, ours });
    peak = Math.max(peak, growth ?? 0);
  }
  const plain = median(pairs.map((pair) => pair.plain));
  return [
    {
      name: 'submit 50,000 items, 32 MiB, to the 202',
      value: median(pairs.map((pair) => pair.ours / pair.plain)),
      unit: 'times',
      comparedWith: `JSON.parse and one fsynced write ${format(plain)} ms, this ${format(median(pairs.map((pair) => pair.ours)))} ms`,
      target: { atMost: 4 },
    },
    {
      name: '  peak growth of resident memory',
      value: peak / body.length,
      unit: 'bodies',
      comparedWith: `one body is ${format(body.length / 2 ** 20)} MiB`,
      target: { atMost: 4 },
    },
  ];
}
