import { uuidv7 } from '../../base/clock.ts';
import { reasonOf, Undone } from '../../base/errors.ts';
import { inTurns, STEP_BYTES } from '../../base/turns.ts';
import { setResults } from '../../batch/results/compact.sql.ts';
import type { CompactDeps, Finished } from '../../batch/results/compact.ts';
import { readFinalItems } from '../../batch/results/final-items.ts';
import { isConnectionError } from '../../db/errors.ts';
import type { PayloadRef } from '../../payloads/payload-store.ts';
import { insertFile } from '../files/stored-files.sql.ts';
import { readCustomIds } from './custom-ids.ts';
import { publicBatchId } from './find-batch.ts';
import { type ObjectSink, objectSink } from './object-sink.ts';
import { finishOpenaiBatch, type ResultFilesRow, readForResults } from './openai-batches.sql.ts';
import { resultLine, resultLineInSteps } from './result-line.ts';

/** Result files live for 30 days, as batch files do, unless the create says otherwise. */
const EXPIRY_SECONDS = 2_592_000;

/** The result files that were written for a batch. */
interface Written {
  output: { ref: PayloadRef; bytes: number } | null;
  error: { ref: PayloadRef; bytes: number } | null;
  /** Some item was not done when the window closed. */
  expired: boolean;
}

/**
 * The results writer of the OpenAI surface: an output file of the completed requests, an error file of all others, lines in
 * input order; a file without lines is not written. Then one transaction makes their rows, ends the batch and
 * switches the core's batch. Cancelled, expired or completed is decided there. Throws when an answer cannot be read.
 */
export async function writeOpenaiResults(deps: CompactDeps, batch: Finished): Promise<boolean> {
  const row = await readForResults(deps.db, batch.id);
  if (row === null) return false;
  const written = await writeFiles(deps, batch, row.custom_ids_id);
  try {
    if (await switchOver(deps, batch.id, row, written)) return true;
  } catch (error) {
    // After a lost answer to COMMIT the files may be referred to: then the sweep of orphans decides.
    if (!isConnectionError(error)) await discard(deps, written);
    throw error;
  }
  await discard(deps, written);
  return false;
}

async function writeFiles(deps: CompactDeps, batch: Finished, customIdsId: string): Promise<Written> {
  const sink = () => objectSink(deps.payloads, { kind: 'output', id: uuidv7(deps.clock.now()) });
  const sinks = { output: sink(), error: sink() };
  const customIds = readCustomIds(deps.payloads, customIdsId);
  let ids: Buffer[] = [];
  let nextId = 0;
  let expired = false;
  try {
    for await (const group of readFinalItems(deps, batch)) {
      for (const outcome of group) {
        while (nextId === ids.length) {
          const more = await customIds.next();
          if (more.done) throw new Error('custom_ids of the batch are not whole');
          ids = more.value;
          nextId = 0;
        }
        const customId = ids[nextId++]!;
        const bytes = outcome.body?.length ?? 0;
        const isSmall = bytes <= STEP_BYTES;
        const line = isSmall
          ? resultLine(batch.id, customId, outcome)
          : await inTurns(resultLineInSteps(batch.id, customId, outcome), bytes);
        expired ||= line.expired;
        await sinks[line.file].write(line.pieces);
      }
    }
    return { output: await endOf(sinks.output), error: await endOf(sinks.error), expired };
  } catch (error) {
    await Promise.all([sinks.output.abort(), sinks.error.abort()]);
    await discard(deps, { output: { ref: sinks.output.ref, bytes: 0 }, error: { ref: sinks.error.ref, bytes: 0 } });
    throw error;
  } finally {
    await customIds.return(undefined);
  }
}

async function endOf(sink: ObjectSink): Promise<Written['output']> {
  const bytes = await sink.end();
  return bytes === 0 ? null : { ref: sink.ref, bytes };
}

/** Thrown to undo a transaction when another one was faster. */
const BEATEN = new Undone('another wrote the result files');

async function switchOver(
  deps: CompactDeps,
  id: string,
  { owner, output_expires_s }: ResultFilesRow,
  { output, error, expired }: Written,
): Promise<boolean> {
  try {
    await deps.db.transaction(async (tx) => {
      const insert = async (file: Written['output'], name: string): Promise<string | null> => {
        if (file === null) return null;
        const row = await insertFile(tx, {
          owner,
          purpose: 'batch_output',
          filename: `${publicBatchId(id)}_${name}.jsonl`,
          bytes: file.bytes,
          object: { kind: 'output', id: file.ref.id },
          expiresAfterSeconds: output_expires_s ?? EXPIRY_SECONDS,
        });
        return row.id;
      };
      const outputFileId = await insert(output, 'output');
      const errorFileId = await insert(error, 'error');
      const ended = await finishOpenaiBatch(tx, { id, expired, outputFileId, errorFileId });
      if (!ended || !(await setResults(tx, id, uuidv7(deps.clock.now())))) throw BEATEN;
    });
    return true;
  } catch (error) {
    if (error === BEATEN) return false;
    throw error;
  }
}

/** Best effort: what stays behind is unreferenced, and the sweep deletes it after a day. */
async function discard(deps: CompactDeps, { output, error }: Pick<Written, 'output' | 'error'>): Promise<void> {
  const refs = [output, error].filter((file) => file !== null).map((file) => file.ref);
  await deps.payloads.delete(refs).catch((failure) => {
    deps.log.warn({ err: reasonOf(failure) }, 'could not delete result files that are of no use');
  });
}
