import { ApiError } from '../../base/errors.ts';
import type { Db } from '../../db/database.ts';
import type { ItemState } from '../../model/batch.ts';
import { PayloadNotFound, type PayloadStore } from '../../payloads/payload-store.ts';
import { type BatchKey, type BatchRow, findBatch } from '../batches.sql.ts';
import { CHUNK_BYTES, type ElementBlock, firstOf } from './block.ts';
import type { ChunkMemory } from './chunk-memory.ts';
import { documentBytes, documentElements } from './document.ts';
import { resultElements, UnreadableSpan } from './elements.ts';
import type { StreamShare } from './reader-budget.ts';
import { DOCUMENT_HEAD, DOCUMENT_TAIL } from './result-index.ts';

export interface ResultsDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'read' | 'readMany' | 'stream' | 'size'>;
}

export interface ResultsOptions {
  /** Elements after this idx; -1 for all. */
  after: number;
  state: ItemState | null;
  /** A page with `next_after` of at most `limit` elements; null: all of them, without it. */
  page: { limit: number; singleMaxBytes: number | null } | null;
  /** How much the stream may have in memory. */
  share?: StreamShare;
  /** The source of chunks, if their reader returns them. */
  memory?: ChunkMemory;
}

/** A page ends before it gets larger than this: as base64 inside a Lambda answer it is just under the 6 MB of AWS. */
export const PAGE_BYTES = 4_500_000;
/** Below this, pieces are joined. */
const SMALL_BYTES = 64 * 1024;
const COMMA = Buffer.from(',');

/**
 * `{"results":[...]}` in chunks, item bytes exactly as they were stored, bounded in memory (8 MiB, or two of the
 * largest responses). A compacted batch is read from its document, else from item rows and segments; a batch that is
 * compacted under the reader continues from the same idx. Deleted, or broken later: throws, `not_found` before the
 * first chunk, so that no well-formed wrong document ever goes out. Item states are each of the moment they are read.
 */
export async function* renderResults(
  deps: ResultsDeps,
  key: BatchKey,
  batch: BatchRow,
  options: ResultsOptions,
): AsyncGenerator<Buffer> {
  const out = chunker();
  out.add(Buffer.from(DOCUMENT_HEAD));
  let { after } = options;
  let taken = 0;
  let bytes = 0;
  let more = false;
  let current = batch;
  let tolerant = false;

  /** Adds the elements of a block, or as many as the page has room for; false when that is full. */
  const take = (block: ElementBlock): boolean => {
    const count = options.page ? roomFor(block, options.page.limit, taken, bytes) : block.count;
    if (count > 0) {
      if (taken > 0) out.add(COMMA);
      for (const chunk of firstOf(block, count)) out.add(chunk);
      after = block.idx[count - 1]!;
      taken += count;
      bytes += block.end[count - 1]! + 1;
    }
    return count === block.count;
  };

  reading: for (;;) {
    const document = current.results_id && { resultsId: current.results_id, totalItems: current.total_items };
    // One more than the page holds tells whether there is a next one.
    const rest = options.page ? options.page.limit + 1 - taken : null;
    const range = { after, limit: rest, state: options.state, maxBytes: options.page?.singleMaxBytes ?? null };
    try {
      if (document && !options.page && !options.state) {
        if (taken > 0 && after + 1 < current.total_items) out.add(COMMA);
        for await (const chunk of documentBytes(deps, document, after)) {
          yield* out.take(); // not before: until the document answers, the answer can still be `not_found`
          yield chunk;
        }
        return;
      }
      const blocks = document
        ? documentElements(deps, document, range)
        : resultElements(deps, current.id, {
            ...range,
            totalItems: current.total_items,
            onBadSpan: tolerant ? 'render' : 'throw_missing',
            ...(options.share && { share: options.share }),
            ...(options.memory && { memory: options.memory }),
          });
      for await (const block of blocks) {
        const first = taken === 0;
        if (!take(block)) {
          more = true;
          break reading;
        }
        if (first || out.size() >= CHUNK_BYTES) yield* out.take(); // the first byte should not wait for a second block
      }
      if (!document) await checkWhole(deps.db, key, current, options, after);
      break;
    } catch (error) {
      if (!isMissing(error)) throw error;
      const again = await findBatch(deps.db, key);
      if (again === null) throw new ApiError('not_found', undefined, { cause: error });
      if (document) throw error;
      // Neither deleted nor compacted: the segment itself is lost, and its items say so.
      tolerant = again.results_id === null;
      current = again;
    }
  }
  out.add(Buffer.from(options.page ? `],"next_after":${more ? after : null}}` : DOCUMENT_TAIL));
  yield* out.take();
}

/** Rows that end early were deleted under the reader: that must not look like the end of the batch. */
async function checkWhole(
  db: Db,
  key: BatchKey,
  batch: BatchRow,
  options: ResultsOptions,
  last: number,
): Promise<void> {
  if (last === batch.total_items - 1) return;
  if (options.state === null && options.after < batch.total_items - 1) throw new ApiError('not_found');
  if ((await findBatch(db, key)) === null) throw new ApiError('not_found');
}

function isMissing(error: unknown): boolean {
  return error instanceof PayloadNotFound || (error instanceof UnreadableSpan && error.missing);
}

/** How many elements of a block there is room for; the first of a page always has it. */
function roomFor(block: ElementBlock, limit: number, taken: number, bytes: number): number {
  let count = 0;
  while (count < block.count && taken + count < limit) {
    if (taken + count > 0 && bytes + block.end[count]! + 1 > PAGE_BYTES) break;
    count++;
  }
  return count;
}

/** Joins small pieces into chunks, and passes large ones on as they are: a write for each small one would cost more. */
function chunker() {
  let ready: Buffer[] = [];
  let parts: Buffer[] = [];
  let partBytes = 0;
  let size = 0;
  const join = () => {
    if (parts.length > 0) ready.push(parts.length === 1 ? parts[0]! : Buffer.concat(parts, partBytes));
    parts = [];
    partBytes = 0;
  };
  return {
    add(part: Buffer) {
      size += part.length;
      if (part.length >= SMALL_BYTES) {
        join();
        ready.push(part);
        return;
      }
      parts.push(part);
      partBytes += part.length;
      if (partBytes >= CHUNK_BYTES) join();
    },
    size: () => size,
    take(): Buffer[] {
      join();
      const chunks = ready;
      ready = [];
      size = 0;
      return chunks;
    },
  };
}
