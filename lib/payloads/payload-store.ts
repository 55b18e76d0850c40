import type { Buffer } from 'node:buffer';
import { uuidv7Time } from '../base/clock.ts';

/**
 * `input`: submitted bodies and batch files; `custom_ids`: the items' custom_id values, a line each; `segment`: answers of
 * a group commit; `result` and `index`: of a finished batch; `output`: result files of the OpenAI surface; `upload`:
 * bodies on their way to a submit, which their callers may write again until they are used.
 */
export const PAYLOAD_KINDS = ['input', 'custom_ids', 'segment', 'result', 'index', 'output', 'upload'] as const;
export type PayloadKind = (typeof PAYLOAD_KINDS)[number];

/** An object is named by kind and a UUIDv7; its key, creation time included, follows from these. */
export interface PayloadRef {
  kind: PayloadKind;
  id: string;
}

/** Keys look like `segment/2026112921/<uuid>`: one directory an hour keeps directories small and listings cheap. */
export function payloadKey(ref: PayloadRef): string {
  return `${ref.kind}/${payloadHour(uuidv7Time(ref.id))}/${ref.id}`;
}

const HOUR_MS = 3_600_000;
// Names come by the thousand, and nearly all of one hour: to format it was a twentieth of the time of their reads.
let known = { hour: 0, text: '1970010100' };

/** `yyyymmddhh` in UTC. */
export function payloadHour(epochMs: number): string {
  const hour = Math.floor(epochMs / HOUR_MS);
  if (hour !== known.hour) {
    known = { hour, text: new Date(hour * HOUR_MS).toISOString().replace(/[-T]/g, '').slice(0, 10) };
  }
  return known.text;
}

/** Thrown by reads for an object that is not there (yet: NFS and S3 may be late). A `transient` kind as well. */
export class PayloadNotFound extends Error {
  constructor(key: string, options?: { cause?: unknown }) {
    super(`payload object not found: ${key}`, options);
    this.name = 'PayloadNotFound';
  }
}

/** Thrown by writes that find no room or no permission. Submit answers 503 `storage_full`; workers stop claiming. */
export class StorageFull extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'StorageFull';
  }
}

/** One read of many. */
export interface RangeRead {
  ref: PayloadRef;
  offset: number;
  length: number;
}

/** What `readMany` gives. */
export interface ManyRead {
  /** The bytes of the first read, of the second, and so on, without gaps. */
  memory: Buffer;
  /** 1 for each read whose bytes are there; the others, and those beyond its end, are to be read one by one. */
  done: Uint8Array;
  /** Gives the memory back: it will be written over. */
  release(): void;
}

/**
 * Write-once objects. A write returns only when the object is durable under its final name; it is never appended nor
 * replaced. Reads of a range that is not wholly there throw. All methods may throw StorageFull, PayloadNotFound or the
 * store's own error (to be retried).
 */
export interface PayloadStore {
  /** Writes the pieces, in order, as one object. */
  write(ref: PayloadRef, pieces: readonly Uint8Array[]): Promise<void>;
  /** Writes a stream as one object with bounded memory; gives its length in bytes. */
  writeStream(ref: PayloadRef, source: AsyncIterable<Uint8Array>): Promise<number>;
  /**
   * `length` bytes from `offset`; shorter objects throw. `target` (exactly as long) is memory that they may be put into,
   * and the caller's again as soon as this has settled; what is given is where they are.
   */
  read(ref: PayloadRef, offset: number, length: number, target?: Buffer): Promise<Buffer>;
  /**
   * Where the store can: many short reads for little more than the price of one. Null when it cannot at present; never
   * rejects.
   */
  readMany?(reads: readonly RangeRead[]): Promise<ManyRead | null>;
  /** The same as a stream, with back-pressure. */
  stream(ref: PayloadRef, offset: number, length: number): AsyncIterable<Buffer>;
  /** Length of the object in bytes. */
  size(ref: PayloadRef): Promise<number>;
  /** Where the store can: a URL of the whole object, as JSON unless said, that needs no credential for so many seconds. */
  link?(ref: PayloadRef, seconds: number, contentType?: string): Promise<string>;
  /** Where the store can: a URL that takes one PUT of exactly `bytes`, without a credential, for so many seconds. */
  uploadLink?(ref: PayloadRef, bytes: number, seconds: number): Promise<string>;
  /** Deletes objects; one that is not there is no error. */
  delete(refs: readonly PayloadRef[]): Promise<void>;
  /** Objects of one kind created before `beforeMs` (by their key), oldest first. Names it does not know are left out. */
  list(kind: PayloadKind, beforeMs: number): AsyncIterable<PayloadRef>;
  /** Removes what writes that never ended left behind before `beforeMs`, and directories that became empty. */
  removeStale(kind: PayloadKind, beforeMs: number): Promise<void>;
  /** The store-id marker, or null when there is none. */
  readMarker(): Promise<string | null>;
  /** Writes the marker if there is none; the winner's value is what `readMarker` gives afterwards. */
  writeMarker(id: string): Promise<void>;
  close(): Promise<void>;
}
