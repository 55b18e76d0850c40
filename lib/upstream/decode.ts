import { promisify } from 'node:util';
import * as zlib from 'node:zlib';

/** `body`: the decoded bytes; else why there are none. */
export type Decoded = { body: Buffer } | { fault: 'unknown_encoding' | 'corrupt' | 'too_large' };

/**
 * Up to this many compressed bytes are decoded at once: a hop to the thread pool costs more than the work. What grows
 * beyond SYNC_OUTPUT (brotli and zstd have no bound on their ratio) starts again in the thread pool, so that no answer
 * holds the event loop for more than about a millisecond.
 */
const SYNC_BYTES = 16 * 1024;
const SYNC_OUTPUT = 1024 * 1024;

interface Coder {
  now(bytes: Buffer, limit: { maxOutputLength: number }): Buffer;
  later(bytes: Buffer, limit: { maxOutputLength: number }): Promise<Buffer>;
}

const GZIP: Coder = { now: zlib.gunzipSync, later: promisify<Buffer, object, Buffer>(zlib.gunzip) };
const INFLATE: Coder = { now: zlib.inflateSync, later: promisify<Buffer, object, Buffer>(zlib.inflate) };
const INFLATE_RAW: Coder = { now: zlib.inflateRawSync, later: promisify<Buffer, object, Buffer>(zlib.inflateRaw) };
const BROTLI: Coder = {
  now: zlib.brotliDecompressSync,
  later: promisify<Buffer, object, Buffer>(zlib.brotliDecompress),
};
const ZSTD: Coder = { now: zlib.zstdDecompressSync, later: promisify<Buffer, object, Buffer>(zlib.zstdDecompress) };

/**
 * Undoes Content-Encoding (a list is undone from its end), at most `maxBytes` after each step. A small body comes back
 * directly, a larger one as a promise; neither throws. An empty body is left as it is, whatever its header says.
 */
export function decodeBody(encoding: string | null, raw: Buffer, maxBytes: number): Decoded | Promise<Decoded> {
  if (encoding === null || raw.length === 0) return { body: raw };
  const steps = encoding
    .split(',')
    .map((step) => step.trim())
    .filter((step) => step !== '' && step !== 'identity')
    .reverse();
  if (steps.length === 0) return { body: raw };
  if (steps.length > 1 || raw.length > SYNC_BYTES) return decodeLater(steps, raw, maxBytes);
  const coder = coderFor(steps[0]!, raw);
  if (coder === null) return { fault: 'unknown_encoding' };
  try {
    return { body: coder.now(raw, { maxOutputLength: Math.min(maxBytes, SYNC_OUTPUT) }) };
  } catch (error) {
    const fault = faultOf(error);
    return fault === 'too_large' && maxBytes > SYNC_OUTPUT ? decodeLater(steps, raw, maxBytes) : { fault };
  }
}

async function decodeLater(steps: string[], raw: Buffer, maxBytes: number): Promise<Decoded> {
  let body = raw;
  for (const step of steps) {
    const coder = coderFor(step, body);
    if (coder === null) return { fault: 'unknown_encoding' };
    try {
      body = await coder.later(body, { maxOutputLength: maxBytes });
    } catch (error) {
      return { fault: faultOf(error) };
    }
  }
  return { body };
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
