import type { Buffer } from 'node:buffer';
import { uuidv7Time } from '../base/clock.ts';

/**
 * `input`: submitted bodies and batch files. `custom_ids`: the items' custom_id values, a line each. `segment`: answers
 * of a group commit. `result` and `index`: of a finished batch. `output`: result files of the OpenAI surface. `upload`:
 * bodies on their way to a submit; their callers may write them again until they are used.
 */
export const PAYLOAD_KINDS = ['input', 'custom_ids', 'segment', 'result', 'index', 'output', 'upload'] as const;
export type PayloadKind = (typeof PAYLOAD_KINDS)[number];

/** A kind and a UUIDv7 name an object. Its key, creation time included, follows from these. */
export interface PayloadRef {
  kind: PayloadKind;
  id: string;
}

/** Returns a key like `segment/2026112921/<uuid>`. One directory an hour keeps directories small and listings cheap. */
export function payloadKey(ref: PayloadRef): string {
  return `${ref.kind}/${payloadHour(uuidv7Time(ref.id))}/${ref.id}`;
}

const HOUR_MS = 3_600_000;
// Thousands of names come together, nearly all of one hour: to format it was a twentieth of the time of their reads.
let known = { hour: 0, text: '1970010100' };

/** Returns `yyyymmddhh` in UTC. */
export function payloadHour(epochMs: number): string {
  const hour = Math.floor(epochMs / HOUR_MS);
  if (hour !== known.hour) {
    known = { hour, text: new Date(hour * HOUR_MS).toISOString().replace(/[-T]/g, '').slice(0, 10) };
  }
  return known.text;
}

/** Reads throw it for an object that is missing (perhaps not visible yet on NFS and S3). A `transient` kind as well. */
export class PayloadNotFound extends Error {
  constructor(key: string, options?: { cause?: unknown }) {
    super(`payload object not found: ${key}`, options);
    this.name = 'PayloadNotFound';
  }
}

/** Writes throw it without room or permission. Submit answers 503 `storage_full`; workers stop claiming. */
export class StorageFull extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'StorageFull';
  }
}

/** One read of `readMany`. */
export interface RangeRead {
  ref: PayloadRef;
  offset: number;
  length: number;
}

/** The result of `readMany`. */
export interface ManyRead {
  /** The bytes of the first read, of the second, and so on, without gaps. */
  memory: Buffer;
  /** 1 for each read whose bytes arrived. The others, and those beyond its end, must be read one by one. */
  done: Uint8Array;
  /** Releases the memory: it will be overwritten. */
  release(): void;
}

/**
 * Write-once objects. A write returns only when the object is durable under its final name. An object is never appended
 * nor replaced. Reads of a range that is not wholly stored throw. All methods may throw StorageFull, PayloadNotFound or
 * the store's own error (to be retried).
 */
export interface PayloadStore {
  /** The most memory that a stream on its way into the store takes. */
  readonly streamBytes: number;
  /** Writes the pieces, in order, as one object. */
  write(ref: PayloadRef, pieces: readonly Uint8Array[]): Promise<void>;
  /** Writes a stream as one object with bounded memory. Returns its length in bytes. */
  writeStream(ref: PayloadRef, source: AsyncIterable<Uint8Array>): Promise<number>;
  /**
   * Returns `length` bytes from `offset`. Throws for a shorter object. `target` (exactly as long) is memory that may
   * receive them, and the caller's again as soon as the promise settles. The returned buffer is where they are.
   */
  read(ref: PayloadRef, offset: number, length: number, target?: Buffer): Promise<Buffer>;
  /**
   * Only some stores: many short reads for little more than the price of one. Null if it is not possible now. Never
   * rejects.
   */
  readMany?(reads: readonly RangeRead[]): Promise<ManyRead | null>;
  /** Returns the same as a stream, with back-pressure. */
  stream(ref: PayloadRef, offset: number, length: number): AsyncIterable<Buffer>;
  /** Returns the length of the object in bytes. */
  size(ref: PayloadRef): Promise<number>;
  /** Only some stores: a URL of the whole object, as JSON by default, without a credential, for so many seconds. */
  link?(ref: PayloadRef, seconds: number, contentType?: string): Promise<string>;
  /** Only some stores: a URL for one PUT of exactly `bytes`, without a credential, for so many seconds. */
  uploadLink?(ref: PayloadRef, bytes: number, seconds: number): Promise<string>;
  /** Deletes objects. A missing one is ignored. */
  delete(refs: readonly PayloadRef[]): Promise<void>;
  /** Lists objects of one kind created before `beforeMs` (by their key), oldest first. It ignores unknown names. */
  list(kind: PayloadKind, beforeMs: number): AsyncIterable<PayloadRef>;
  /** Removes the remains of unfinished writes from before `beforeMs`, and directories that became empty. */
  removeStale(kind: PayloadKind, beforeMs: number): Promise<void>;
  /** Returns the store-id marker, or null if it is missing. */
  readMarker(): Promise<string | null>;
  /** Writes the marker if it is missing. Afterwards `readMarker` returns the value of the first writer. */
  writeMarker(id: string): Promise<void>;
  close(): Promise<void>;
}
