import { uuidv7 } from '../../base/clock.ts';
import { inTurns, STEP_BYTES } from '../../base/turns.ts';
import { setResults } from '../../batch/results/compact.sql.ts';
import type { CompactDeps, Finished, ResultsWriter } from '../../batch/results/compact.ts';
import { readFinalItems } from '../../batch/results/final-items.ts';
import { hexOfUuid } from '../../model/public-id.ts';
import type { PayloadRef } from '../../payloads/payload-store.ts';
import { findCustomIds, freezeMessageCounts } from './message-batches.sql.ts';
import { type ResultType, resultLine, resultLineInSteps, resultType } from './result-line.ts';

const LF = 0x0a;

/**
 * Writes the results of an ended batch as JSONL, one line a request in the order of the requests, and ends it. The results
 * and the counts by type in one guarded transaction. A batch that was deleted or ended meanwhile wins, and the object is
 * deleted again. Throws when an answer or a custom id cannot be read.
 */
export const writeMessageResults: ResultsWriter = async (deps, batch) => {
  const result: PayloadRef = { kind: 'result', id: uuidv7(deps.clock.now()) };
  const counts: Record<ResultType, number> = { succeeded: 0, errored: 0, canceled: 0, expired: 0 };
  await deps.payloads.writeStream(result, lines(deps, batch, counts));
  const { succeeded, errored, canceled, expired } = counts;
  const switched = await deps.db.transaction(async (tx) => {
    if (!(await setResults(tx, batch.id, result.id))) return false;
    const frozen = { completed: succeeded, discarded: errored + expired, cancelled: canceled, expired };
    await freezeMessageCounts(tx, { id: batch.id, resultsId: result.id }, frozen);
    return true;
  });
  if (!switched) await deps.payloads.delete([result]);
  return switched;
};

/** A group of answers at a time (4 MiB, or one larger answer), as one chunk. */
async function* lines(deps: CompactDeps, batch: Finished, counts: Record<ResultType, number>): AsyncGenerator<Buffer> {
  const { id } = batch;
  const customIds = await readCustomIds(deps, id);
  const hex = hexOfUuid(id);
  let at = 0;
  for await (const outcomes of readFinalItems(deps, batch)) {
    const pieces: Uint8Array[] = [];
    for (const outcome of outcomes) {
      const end = customIds.indexOf(LF, at);
      if (end < 0) throw new Error(`the custom ids end before item ${outcome.idx}`);
      const type = resultType(outcome);
      counts[type]++;
      const line = [customIds.subarray(at, end), outcome, type, `req_${hex}_${outcome.idx}`] as const;
      const bytes = outcome.body?.length ?? 0;
      if (bytes <= STEP_BYTES) pieces.push(...resultLine(...line));
      else pieces.push(...(await inTurns(resultLineInSteps(...line), bytes)));
      at = end + 1;
    }
    yield Buffer.concat(pieces);
  }
}

/** All of them: 100,000 take 7 MB at most. */
async function readCustomIds({ db, payloads }: CompactDeps, batchId: string): Promise<Buffer> {
  const id = await findCustomIds(db, batchId);
  if (id === null) throw new Error('batch is gone or has no custom ids');
  const ref: PayloadRef = { kind: 'custom_ids', id };
  return payloads.read(ref, 0, await payloads.size(ref));
}
