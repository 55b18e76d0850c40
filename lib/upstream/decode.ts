import type { Transform } from 'node:stream';
import * as zlib from 'node:zlib';
import { growingBuffer } from '../base/growing-buffer.ts';
import { inTurns } from '../base/turns.ts';

/** `body`: the decoded bytes; else the reason why they are missing. */
export type Decoded = { body: Buffer } | { fault: 'unknown_encoding' | 'corrupt' | 'too_large' };

/** The budget of a long decoding: turns and memory. */
export interface DecodeRoom {
  /** Resolves once a long decoding may begin: few do at a time. */
  begin(): Promise<void>;
  /** Reserves memory before it is used; resolves once the decoding may continue. */
  reserve(bytes: number): Promise<void>;
  /** The decoding has ended. What was reserved stays so. */
  finish(): void;
}

export interface DecodeLimits {
  /** After each coding. */
  maxBytes: number;
  room: DecodeRoom;
}

/**
 * Up to this many compressed bytes are decoded at once: a hop to the thread pool costs more than the work. An answer
 * that grows beyond SYNC_OUTPUT (brotli and zstd have no bound on their ratio) starts again in the thread pool. So no
 * answer holds the event loop for more than about a millisecond.
 */
const SYNC_BYTES = 16 * 1024;
const SYNC_OUTPUT = 256 * 1024;

/**
 * A body above DENSE_FROM that is more than so many times as large as what was sent is too large: no answer of a model
 * is. A smaller one may be: a model that repeats itself up to its limit compresses to nearly nothing.
 */
const DENSE_FROM = 8 * 1024 * 1024;
const MAX_RATIO = 200;

/** Each coding costs a whole decoding; servers apply one. */
const MAX_CODINGS = 2;

/** Decoded bytes of one piece. */
const CHUNK_BYTES = 64 * 1024;
/** Reserved at a time, and before it is written: what a decoder has ready beside the piece that is taken fits in. */
const RESERVE_BYTES = 256 * 1024;

interface Coder {
  now(bytes: Buffer, limit: { maxOutputLength: number }): Buffer;
  stream(): Transform;
}

const chunks = { chunkSize: CHUNK_BYTES };
const GZIP: Coder = { now: zlib.gunzipSync, stream: () => zlib.createGunzip(chunks) };
const INFLATE: Coder = { now: zlib.inflateSync, stream: () => zlib.createInflate(chunks) };
const INFLATE_RAW: Coder = { now: zlib.inflateRawSync, stream: () => zlib.createInflateRaw(chunks) };
const BROTLI: Coder = { now: zlib.brotliDecompressSync, stream: () => zlib.createBrotliDecompress(chunks) };
/** A window of 8 MiB is the largest that a server may use (RFC 9659); by default a decoder would take 128 MiB for it. */
const zstdParams = { params: { [zlib.constants.ZSTD_d_windowLogMax]: 23 } };
const ZSTD: Coder = {
  now: (bytes, limit) => zlib.zstdDecompressSync(bytes, { ...limit, ...zstdParams }),
  stream: () => zlib.createZstdDecompress({ ...chunks, ...zstdParams }),
};

/**
 * Undoes Content-Encoding (a list is undone from its end), at most `maxBytes` after each step. A small body returns
 * directly, a larger one as a promise; neither throws. An empty body is left as it is, whatever its header says. `raw` is
 * not read any more after that.
 */
export function decodeBody(encoding: string | null, raw: Buffer, limits: DecodeLimits): Decoded | Promise<Decoded> {
  if (encoding === null || raw.length === 0) return { body: raw };
  const steps = encoding
    .split(',')
    .map((step) => step.trim())
    .filter((step) => step !== '' && step !== 'identity')
    .reverse();
  if (steps.length === 0) return { body: raw };
  if (steps.length > MAX_CODINGS) return { fault: 'unknown_encoding' };
  if (steps.length > 1 || raw.length > SYNC_BYTES) return decodeLater(steps, raw, limits);
  const coder = coderFor(steps[0]!, raw);
  if (coder === null) return { fault: 'unknown_encoding' };
  try {
    return { body: coder.now(raw, { maxOutputLength: Math.min(limits.maxBytes, SYNC_OUTPUT) }) };
  } catch (error) {
    const fault = faultOf(error);
    return fault === 'too_large' && limits.maxBytes > SYNC_OUTPUT ? decodeLater(steps, raw, limits) : { fault };
  }
}

async function decodeLater(steps: string[], raw: Buffer, limits: DecodeLimits): Promise<Decoded> {
  await limits.room.begin();
  try {
    let decoded: Decoded = { body: raw };
    for (const step of steps) {
      const coder = coderFor(step, decoded.body);
      if (coder === null) return { fault: 'unknown_encoding' };
      decoded = await decodeStream(coder, decoded.body, limits);
      if (!('body' in decoded)) return decoded;
    }
    return decoded;
  } finally {
    limits.room.finish();
  }
}

/** Decodes piece by piece; memory is reserved before it is used, and nothing is decoded beyond the limit. */
async function decodeStream(coder: Coder, raw: Buffer, { maxBytes, room }: DecodeLimits): Promise<Decoded> {
  const most = Math.min(maxBytes, Math.max(DENSE_FROM, raw.length * MAX_RATIO));
  await room.reserve(RESERVE_BYTES);
  let reserved = RESERVE_BYTES;
  const decoded = growingBuffer(0);
  const stream = coder.stream();
  stream.end(raw);
  try {
    for await (const piece of stream as AsyncIterable<Buffer>) {
      const size = decoded.size() + piece.length;
      if (size > most) return { fault: 'too_large' };
      while (reserved < size + RESERVE_BYTES) {
        await room.reserve(RESERVE_BYTES);
        reserved += RESERVE_BYTES;
      }
      decoded.append(piece);
    }
    return { body: decoded.whole() ?? (await inTurns(decoded.join(), decoded.size())) };
  } catch {
    return { fault: 'corrupt' };
  } finally {
    stream.destroy();
  }
}

function coderFor(encoding: string, bytes: Buffer): Coder | null {
  switch (encoding) {
    case 'gzip':
    case 'x-gzip':
      return GZIP;
    case 'deflate':
      return hasZlibHeader(bytes) ? INFLATE : INFLATE_RAW;
    case 'br':
      return BROTLI;
    case 'zstd':
      return ZSTD;
    default:
      return null;
  }
}

/** Servers send `deflate` both with a zlib header (RFC 9110) and without; RFC 1950 section 2.2 tells them apart. */
function hasZlibHeader(bytes: Buffer): boolean {
  const [first = 0, second = 0] = bytes;
  return (first & 0x0f) === 8 && ((first << 8) | second) % 31 === 0;
}

function faultOf(error: unknown): 'too_large' | 'corrupt' {
  return (error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE' ? 'too_large' : 'corrupt';
}
