import { type Accepted, finalItemsReach, submit } from './batches.ts';
import type { Bed, BenchDatabase, BenchServer } from './bed.ts';
import { submission } from './items.ts';

/**
 * A batch that stands still half done, as a running one looks at that moment: it was run for real, by a server that was
 * stopped; the one that answers now runs nothing.
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
