import type { ItemState } from '../../model/batch.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { readRanges } from '../../payloads/ranges.ts';
import { readOn } from '../../payloads/read-on.ts';
import { blockWriter, type ElementBlock } from './block.ts';
import { TOO_LARGE } from './elements.ts';
import { DOCUMENT_HEAD, DOCUMENT_TAIL, INDEX_RECORD_BYTES, type IndexRecord, readIndexRecord } from './result-index.ts';

export interface DocumentDeps {
  payloads: Pick<PayloadStore, 'read' | 'stream' | 'size'>;
}

/** A compacted batch: where its document is, and how many elements that has. */
export interface ResultsDocument {
  resultsId: string;
  totalItems: number;
}

/** Index records of one read: 256 KiB. */
const RECORDS = 16_384;
const LOAD_BYTES = 4 * 1024 * 1024;

/**
 * The document's own bytes from the element after `after` to its end, the closing `]}` included; from -1 that is all but
 * the opening. A broken read continues from where it was, up to three times in a row.
 */
export async function* documentBytes(
  deps: DocumentDeps,
  document: ResultsDocument,
  after: number,
): AsyncGenerator<Buffer> {
  const ref = { kind: 'result', id: document.resultsId } as const;
  const end = await deps.payloads.size(ref);
  let at = after < 0 ? DOCUMENT_HEAD.length : end - DOCUMENT_TAIL.length;
  if (after >= 0 && after + 1 < document.totalItems) {
    const [first] = await readRecords(deps, document, after + 1, 1);
    at = first!.offset;
  }
  yield* readOn(deps.payloads, ref, at, end);
}

/** Chosen elements of the document, in idx order, some at a time. What cannot be read throws. */
export async function* documentElements(
  deps: DocumentDeps,
  document: ResultsDocument,
  options: { after: number; limit: number | null; state: ItemState | null; maxBytes: number | null },
): AsyncGenerator<ElementBlock> {
  const maxBytes = options.maxBytes ?? Number.POSITIVE_INFINITY;
  let loading: Promise<ElementBlock> | null = null;
  for await (const wanted of chooseRecords(deps, document, options)) {
    const next = loadElements(deps, document, wanted, maxBytes);
    next.catch(() => {});
    if (loading) yield await loading;
    loading = next;
  }
  if (loading) yield await loading;
}

type Numbered = IndexRecord & { idx: number };

async function* chooseRecords(
  deps: DocumentDeps,
  document: ResultsDocument,
  options: { after: number; limit: number | null; state: ItemState | null },
): AsyncGenerator<Numbered[]> {
  let left = options.limit ?? Number.POSITIVE_INFINITY;
  let group: Numbered[] = [];
  let bytes = 0;
  for (let idx = options.after + 1; idx < document.totalItems && left > 0; ) {
    const count = Math.min(RECORDS, document.totalItems - idx, options.state === null ? left : RECORDS);
    for (const record of await readRecords(deps, document, idx, count)) {
      if (left > 0 && (options.state === null || record.state === options.state)) {
        if (bytes + record.length > LOAD_BYTES && group.length > 0) {
          yield group;
          group = [];
          bytes = 0;
        }
        group.push({ ...record, idx });
        bytes += record.length;
        left--;
      }
      idx++;
    }
  }
  if (group.length > 0) yield group;
}

async function readRecords(
  deps: DocumentDeps,
  document: ResultsDocument,
  from: number,
  count: number,
): Promise<IndexRecord[]> {
  const ref = { kind: 'index', id: document.resultsId } as const;
  const range = { offset: from * INDEX_RECORD_BYTES, length: count * INDEX_RECORD_BYTES };
  const [bytes] = await readRanges(deps.payloads, ref, [range]);
  if (!Buffer.isBuffer(bytes)) throw bytes;
  return Array.from({ length: count }, (_, i) => readIndexRecord(bytes, i));
}

async function loadElements(
  deps: DocumentDeps,
  document: ResultsDocument,
  records: readonly Numbered[],
  maxBytes: number,
): Promise<ElementBlock> {
  const readable = records.filter(({ length }) => length <= maxBytes);
  const read = await readRanges(deps.payloads, { kind: 'result', id: document.resultsId }, readable);
  const writer = blockWriter(readable.reduce((sum, { length }) => sum + length + 1, 0));
  let at = 0;
  for (const { idx, state, length } of records) {
    if (length > maxBytes) {
      writer.failed(idx, TOO_LARGE);
      continue;
    }
    const bytes = read[at++]!;
    if (!Buffer.isBuffer(bytes)) throw bytes;
    writer.element(idx, state, bytes);
  }
  return writer.done();
}
