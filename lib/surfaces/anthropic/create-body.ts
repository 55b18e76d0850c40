import type { Buffer } from 'node:buffer';
import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { type BodyAccount, UNCOUNTED } from '../../base/body-budget.ts';
import { ApiError } from '../../base/errors.ts';
import { crc32InSteps, piecesOf, STEP_BYTES, type Steps } from '../../base/turns.ts';
import { MAX_MEMBERS } from '../../json/members.ts';
import { doubled, type Spans, spanList } from '../../json/spans.ts';
import { elementScanner, type StreamFault } from '../../json/stream-elements.ts';
import { requestReader } from './request-element.ts';

/** Limits of a create ("Create of a message batch" in docs/spec/anthropic-surface.md). */
export interface CreateLimits {
  maxRequests: number;
  maxBytes: number;
  /** Of one request: so much is in memory at most. */
  maxRequestBytes: number;
}

/** 256 MB are taken as 256 MiB, and one request may be as large as the API's own body. */
export const CREATE_LIMITS: CreateLimits = {
  maxRequests: 100_000,
  maxBytes: 256 * 1024 * 1024,
  maxRequestBytes: 32 * 1024 * 1024,
};

/** The result of reading a create's body. */
export type CreateBody =
  | {
      kind: 'requests';
      /** Where the value of each `params` stands: those are the bytes that are sent upstream. */
      items: Spans;
      /** CRC32 of each of them. */
      crcs: Uint32Array;
      /** In the order of the requests. */
      customIds: ReadonlySet<string>;
      sha256: Buffer;
    }
  | { kind: 'upload'; uploadId: string; sha256: Buffer };

/** Reads one body in pieces; every method throws the ApiError that refuses the create. */
export interface CreateBodyReader {
  push(chunk: Buffer): Steps<void>;
  end(): CreateBody;
}

const MAX_UPLOAD_ID_BYTES = 1024;

/** The memory of a request until it is recorded: its `custom_id` three times, where it stands, its checksum. */
const REQUEST_BYTES = 384;

/**
 * Reads `{"requests":[{"custom_id","params"}]}`, or `{"upload_id"}` in its place, with one request in memory at a time.
 * The first violation refuses the create: 400 with `requests.<n>.custom_id: ...` (n from 0), 413 for too many or too
 * much. Other members are checked for JSON and ignored. `requests` given twice is refused: what JSON.parse would keep
 * is known only when the first ones have been written already. `account` counts what is kept in memory.
 */
export function createBodyReader(
  limits: CreateLimits,
  account: Pick<BodyAccount, 'part'> = UNCOUNTED,
): CreateBodyReader {
  const sha256 = createHash('sha256');
  const request = requestReader();
  const spans = spanList();
  let crcs = new Float64Array(64);
  const seen = new Set<string>();
  const reserveRequests = account.part();
  let reserved = 64;
  let bytesRead = 0;
  let sent = 0;
  let begun = false;
  let uploadId: string | null = null;
  let unsummed = null as { n: number; bytes: Buffer } | null;

  const scanner = elementScanner(
    {
      array: 'requests',
      members: ['upload_id'],
      maxValueBytes: limits.maxRequestBytes,
      reserve: account.part(),
      events: request,
    },
    {
      begin(isArray) {
        if (begun) throw invalid('requests: given twice');
        if (!isArray) throw invalid('requests: Input should be a valid array');
        begun = true;
      },
      element(bytes, start, _end, offset) {
        if (sent++ >= limits.maxRequests) return; // only counted: the error says how many there were
        const n = sent - 1;
        const fault = request.check();
        if (fault !== null) throw invalid(`requests.${n}${fault.at}: ${fault.text}`);
        const { customId, params } = request;
        if (sent > reserved) {
          reserved *= 2;
          reserveRequests(reserved * REQUEST_BYTES);
        }
        seen.add(customId);
        if (seen.size === n) {
          const earlier = [...seen].indexOf(customId);
          throw invalid(`requests.${n}.custom_id: '${customId}' is that of requests.${earlier}.custom_id, too`);
        }
        const from = offset + params.start - start;
        spans.push(from, from + params.end - params.start);
        if (n === crcs.length) crcs = doubled(crcs);
        const item = bytes.subarray(params.start, params.end);
        if (item.length > STEP_BYTES) unsummed = { n, bytes: item };
        else crcs[n] = crc32(item);
      },
      member(_name, bytes, start, end) {
        uploadId = uploadIdOf(bytes, start, end);
      },
    },
  );

  const refuse = (fault: StreamFault): never => {
    if (fault.kind === 'not_utf8') throw new ApiError('invalid_json', 'request body is not valid UTF-8');
    if (fault.kind === 'not_object') throw invalid('request body must be a JSON object');
    if (fault.kind === 'too_many_members') throw invalid(`request body has more than ${MAX_MEMBERS} members`);
    if (fault.kind === 'too_long') {
      const what = fault.element ? `requests.${sent}` : `the value at offset ${fault.offset}`;
      throw invalid(`${what}: longer than ${limits.maxRequestBytes} bytes, the limit of one request`);
    }
    const what = fault.atEnd ? 'end' : 'byte';
    throw new ApiError('invalid_json', `request body is not valid JSON: unexpected ${what} at offset ${fault.offset}`);
  };

  return {
    *push(chunk) {
      bytesRead += chunk.length;
      if (bytesRead > limits.maxBytes) throw tooLarge(`more than ${limits.maxBytes} bytes`, limits);
      for (const piece of piecesOf(chunk)) {
        sha256.update(piece);
        const steps = scanner.push(piece);
        for (;;) {
          const { done, value: fault } = steps.next();
          // At most one of them ends in a piece, and its bytes are good until the next step.
          if (unsummed !== null) crcs[unsummed.n] = yield* crc32InSteps(unsummed.bytes);
          unsummed = null;
          if (done && fault !== null) refuse(fault);
          if (done) break;
          yield;
        }
      }
    },
    end() {
      const fault = scanner.end();
      if (fault !== null) refuse(fault);
      if (uploadId !== null) {
        if (begun) throw invalid('upload_id: cannot stand beside requests');
        return { kind: 'upload', uploadId, sha256: sha256.digest() };
      }
      if (!begun) throw new ApiError('missing_required_parameter', 'requests: Field required', { param: 'requests' });
      if (sent === 0) throw invalid('requests: should have at least 1 request, not 0');
      if (sent > limits.maxRequests) {
        const message = `requests: too many requests: ${sent} sent, the limit is ${limits.maxRequests}`;
        throw new ApiError('too_many_items', message, { param: 'requests', status: 413 });
      }
      return {
        kind: 'requests',
        items: spans.take(),
        crcs: Uint32Array.from(crcs.subarray(0, sent)),
        customIds: seen,
        sha256: sha256.digest(),
      };
    },
  };
}

/** The 413 of a body over the limit; `sent` says how large it is, as far as that is known. */
export function tooLarge(sent: string, { maxBytes }: Pick<CreateLimits, 'maxBytes'>): ApiError {
  const message = `request body too large: ${sent} sent, the limit is ${maxBytes} bytes`;
  return new ApiError('body_too_large', message, { status: 413 });
}

function uploadIdOf(bytes: Buffer, start: number, end: number): string | null {
  const value: unknown = end - start > MAX_UPLOAD_ID_BYTES ? 0 : JSON.parse(bytes.toString('utf8', start, end));
  if (value === null || typeof value === 'string') return value;
  throw invalid('upload_id: Input should be a valid string');
}

function invalid(message: string): ApiError {
  return new ApiError('invalid_value', message, { param: /^[a-z0-9_.]+(?=: )/.exec(message)?.[0] ?? 'requests' });
}
