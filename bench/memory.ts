import { setTimeout as delay } from 'node:timers/promises';
import { request } from 'undici';
import { allCompleted, finished, submit } from './support/batches.ts';
import type { Bed } from './support/bed.ts';
import { type Figure, format } from './support/figure.ts';
import { KEYS, submission } from './support/items.ts';
import { meter } from './support/meters.ts';
import { peakGrowth, residentBytes } from './support/process.ts';

const MIB = 2 ** 20;
const CALLS = 64;
/** The largest answer that is accepted, less room for its head. */
const ANSWER_BYTES = 64 * MIB - 4096;
/** `heldBytes` of the upstream client, and one answer above it: the oldest is always read further. */
const CAP_MIB = 256 + 64;
/** Not counted: the first MiB of each, and about three recorded answers that V8 has not collected yet. */
const BESIDE_MIB = 64 + 3 * 64;

/**
 * 64 answers of 64 MiB at once, until they are recorded and compacted; then a read of the results. Beside their sum.
 */
export async function benchMemory(bed: Bed): Promise<Figure[]> {
  const database = await bed.database();
  const upstream = await bed.upstream({ answerBytes: ANSWER_BYTES });
  const server = await bed.server({ database, upstream, concurrency: CALLS });
  const before = (await residentBytes(server.pid)) ?? 0;
  let id = '';
  let slots = 0;
  const running = await peakGrowth(server.pid, async () => {
    const batch = await submit(server, submission(CALLS));
    id = batch.id;
    while ((await database.sql('select from batches where id = $1 and completed_at is null', [id])).length > 0) {
      slots = Math.max(slots, await meter(server, 'relay_batch_items_running'));
      await delay(100);
    }
    await allCompleted(database, batch, CALLS);
  });
  const compacting = await peakGrowth(server.pid, () => finished(database, { id, at: 0 }));
  let bytes = 0;
  const reading = await peakGrowth(server.pid, async () => {
    const headers = { authorization: `Bearer ${KEYS.plain}` };
    const { body } = await request(`${server.url}/v1/batches/${id}/results`, { headers });
    for await (const chunk of body) bytes += (chunk as Buffer).length;
  });
  const all = `their sum is ${format(bytes / MIB)} MiB; ${slots} slots were busy at once; ${format(before / MIB)} MiB before`;
  const figure = (name: string, growth: number | null, comparedWith: string, atMost?: number): Figure => ({
    name,
    value: (growth ?? Number.NaN) / MIB,
    unit: 'MiB',
    comparedWith,
    ...(atMost === undefined ? {} : { target: { atMost } }),
  });
  return [
    figure('64 answers of 64 MiB at once, peak growth', running, all, CAP_MIB + BESIDE_MIB),
    figure('  their compaction, peak growth', compacting, 'the server when the last one was recorded'),
    figure('  their results, peak growth', reading, 'the server after the compaction'),
  ];
}
