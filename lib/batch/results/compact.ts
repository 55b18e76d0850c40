import { type Clock, uuidv7 } from '../../base/clock.ts';
import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Database } from '../../db/database.ts';
import { ITEM_STATES } from '../../model/batch.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { COMPACTION_LEASE_SECONDS, claimCompaction, renewCompaction, setResults } from './compact.sql.ts';
import { resultElements } from './elements.ts';
import { DOCUMENT_HEAD, DOCUMENT_TAIL, INDEX_RECORD_BYTES, writeIndexRecord } from './result-index.ts';
import { createRetryPauses } from './retry-pauses.ts';

export interface CompactDeps {
  db: Database;
  payloads: PayloadStore;
  clock: Clock;
  log: Log;
}

/** A finished batch whose results are still in their segments. */
export interface Finished {
  id: string;
  totalItems: number;
  /** Since its last item became final. */
  finishedSeconds: number;
}

/**
 * Writes the results of a finished batch in its surface's form and switches the batch to them in one guarded
 * transaction. Throws when a response cannot be read; false when another was faster or the batch was deleted (then
 * nothing stays behind).
 */
export type ResultsWriter = (deps: CompactDeps, batch: Finished) => Promise<boolean>;

/** Writers by surface; a surface without one gets the native document. */
export type ResultsWriters = Readonly<Record<string, ResultsWriter>>;

/**
 * Compacts finished batches, one after the other, by the writer of their surface (the native one is built in). One that
 * cannot be (a response that is not readable) stays as it is, is served from its segments, and is tried again with a
 * growing pause.
 */
export function createCompactor(
  deps: CompactDeps,
  writers: ResultsWriters = {},
): {
  compact(batchIds: readonly string[]): Promise<void>;
  /** Batches that failed and are not tried again yet. */
  paused(): string[];
  stop(): Promise<void>;
} {
  const pauses = createRetryPauses(deps.clock.monotonic);
  const queued = new Set<string>();
  let tail: Promise<void> = Promise.resolve();
  let stopped = false;

  const one = async (id: string): Promise<void> => {
    queued.delete(id);
    if (stopped || !pauses.mayTry(id)) return;
    try {
      await compactBatch(deps, id, writers);
      pauses.succeeded(id);
    } catch (error) {
      pauses.failed(id);
      deps.log.warn({ err: reasonOf(error), batch: id }, 'batch not compacted, its results stay in their segments');
    }
  };

  return {
    compact(batchIds) {
      for (const id of batchIds) {
        if (queued.has(id)) continue;
        queued.add(id);
        tail = tail.then(() => one(id));
      }
      return tail;
    },
    paused: pauses.paused,
    stop() {
      stopped = true;
      return tail;
    },
  };
}

/**
 * Compacts one batch by the writer of its surface, unless another replica is at it. Throws when a response cannot be read;
 * false when there was nothing to do.
 *
 * @internal Exported for its tests.
 */
export async function compactBatch(deps: CompactDeps, id: string, writers: ResultsWriters = {}): Promise<boolean> {
  const batch = await claimCompaction(deps.db, id);
  if (batch === null) return false;
  // A lease that is not renewed costs work done twice, nothing else.
  const renew = (seconds: number) => renewCompaction(deps.db, id, seconds).catch(() => {});
  const renewal = setInterval(() => void renew(COMPACTION_LEASE_SECONDS), (COMPACTION_LEASE_SECONDS * 1000) / 3);
  try {
    return await (writers[batch.surface] ?? writeDocument)(deps, batch);
  } catch (error) {
    await renew(0);
    throw error;
  } finally {
    clearInterval(renewal);
  }
}

/**
 * The native form: the results document (exactly what the results call returns) and its index. Changes no item row. A
 * batch that was deleted or compacted meanwhile wins: the objects are deleted again.
 */
async function writeDocument(deps: CompactDeps, batch: Finished): Promise<boolean> {
  const batchId = batch.id;
  const id = uuidv7(deps.clock.now());
  const result: PayloadRef = { kind: 'result', id };
  const index: PayloadRef = { kind: 'index', id };
  const records = Buffer.alloc(batch.totalItems * INDEX_RECORD_BYTES);
  let count = 0;
  let length = 0;

  async function* document(): AsyncGenerator<Buffer> {
    yield Buffer.from(DOCUMENT_HEAD);
    let offset = DOCUMENT_HEAD.length;
    const comma = Buffer.from(',');
    for await (const block of resultElements(deps, batchId, {
      after: -1,
      totalItems: batch.totalItems,
      limit: null,
      state: null,
      maxBytes: null,
      onBadSpan: 'throw',
    })) {
      if (count > 0) {
        yield comma;
        offset++;
      }
      for (let i = 0; i < block.count; i++) {
        if (block.idx[i] !== count) throw new Error('batch is gone or has a gap');
        const start = block.start[i]!;
        const state = ITEM_STATES[block.state[i]!]!;
        writeIndexRecord(records, count, { offset: offset + start, length: block.end[i]! - start, state });
        count++;
      }
      yield* block.chunks;
      offset += block.end[block.count - 1]!;
    }
    if (count !== batch.totalItems) throw new Error('batch is gone or has a gap');
    yield Buffer.from(DOCUMENT_TAIL);
    length = offset + DOCUMENT_TAIL.length;
  }

  const written = await deps.payloads.writeStream(result, document());
  if (written !== length) throw new Error('results document was not written whole');
  await deps.payloads.write(index, [records]);
  const switched = await setResults(deps.db, batchId, id);
  if (!switched) await deps.payloads.delete([result, index]);
  return switched;
}
