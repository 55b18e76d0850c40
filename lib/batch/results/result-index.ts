import { ITEM_STATES, type ItemState } from '../../model/batch.ts';

/**
 * The index of a results document: one record an item, in idx order, big endian. A record has the offset of the
 * element's `{` in the document (6 bytes), its length without the comma (4), its state as an index into ITEM_STATES (1), five zero bytes.
 * Fixed size, so that a page is found by arithmetic. The order of ITEM_STATES is thereby part of the format.
 */
export const INDEX_RECORD_BYTES = 16;

/** The document around its elements, which commas join. */
export const DOCUMENT_HEAD = '{"results":[';
export const DOCUMENT_TAIL = ']}';

export interface IndexRecord {
  offset: number;
  length: number;
  state: ItemState;
}

/** Writes the record of item `i` (of this buffer, from 0). */
export function writeIndexRecord(buffer: Buffer, i: number, record: IndexRecord): void {
  const at = i * INDEX_RECORD_BYTES;
  buffer.writeUIntBE(record.offset, at, 6);
  buffer.writeUInt32BE(record.length, at + 6);
  buffer.writeUInt8(ITEM_STATES.indexOf(record.state), at + 10);
  buffer.fill(0, at + 11, at + INDEX_RECORD_BYTES);
}

/** Reads the record of item `i`; a state that does not exist throws: the object is not an index. */
export function readIndexRecord(buffer: Buffer, i: number): IndexRecord {
  const at = i * INDEX_RECORD_BYTES;
  const state = ITEM_STATES[buffer.readUInt8(at + 10)];
  if (state === undefined) throw new Error('results index is damaged');
  return { offset: buffer.readUIntBE(at, 6), length: buffer.readUInt32BE(at + 6), state };
}
