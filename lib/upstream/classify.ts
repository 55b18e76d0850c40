import { isUtf8 } from 'node:buffer';
import type { Steps } from '../base/turns.ts';
import type { CallClass, CallRequest, CallResult } from './call-result.ts';
import { RESULT_FIELD, readLargeAnswer } from './large-answer.ts';

/** Retry-After up to this many milliseconds is a short limit: another key is tried, and no breaker opens. */
const SHORT_RETRY_MS = 5_000;

/** Larger bodies are validated in place and not built: hostile JSON of 64 KiB takes JSON.parse 3 ms, 1 MiB 200 ms. */
export const PARSE_MOST_BYTES = 64 * 1024;

/**
 * The class of a final status ("Upstream outcome classes" in docs/spec/gateway-rules.md); 2xx are judged by their body,
 * so `success` here is provisional.
 */
export function classOfStatus(status: number, retryAfterMs: number | null): CallClass {
  if (status >= 200 && status < 300) return 'success';
  if (status === 401) return 'auth';
  if (status === 402) return 'account';
  if (status === 403) return 'forbidden';
  if (status === 429)
    return retryAfterMs !== null && retryAfterMs > SHORT_RETRY_MS ? 'rate_limit_long' : 'rate_limit_short';
  if (status >= 500 && status < 600) return 'server_error';
  return 'client_error';
}

/** What a 2xx body is: `badReason` null for a response, and then `parsed` is the body, or of a larger one what counts. */
export interface Judgement {
  badReason: CallResult['badReason'];
  parsed: unknown;
}

const NOT_JSON: Judgement = { badReason: 'not_json', parsed: undefined };
const NO_RESPONSE: Judgement = { badReason: 'no_response', parsed: undefined };
const ERROR_INSIDE: Judgement = { badReason: 'error_inside', parsed: undefined };

/**
 * Judges the decoded body of a 2xx answer ("Judgement of a 2xx answer" in docs/spec/gateway-rules.md): not JSON or not
 * UTF-8 (an empty body too). Or JSON but no object; an object with a non-null `error` and without the shape's result
 * field. A result field that is null counts as absent: `{"error":{},"choices":null}` answers nothing. For bodies of at
 * most PARSE_MOST_BYTES.
 */
export function judgeBody(adapter: CallRequest['adapter'], body: Buffer): Judgement {
  if (!isUtf8(body)) return NOT_JSON;
  let parsed: unknown;
  try {
    // JSON.parse refuses a byte order mark, and so must we: the bytes are put into the results document as they are.
    parsed = JSON.parse(body.toString());
  } catch {
    return NOT_JSON;
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return NO_RESPONSE;
  return judgeFields(adapter, parsed as Record<string, unknown>);
}

/** The same for a body of any size, in steps. */
export function* judgeLargeBody(adapter: CallRequest['adapter'], body: Buffer): Steps<Judgement> {
  const answer = yield* readLargeAnswer(adapter, body);
  if (answer.kind === 'invalid') return NOT_JSON;
  return answer.kind === 'not_object' ? NO_RESPONSE : judgeFields(adapter, answer.parts);
}

function judgeFields(adapter: CallRequest['adapter'], fields: Record<string, unknown>): Judgement {
  if (isGiven(fields, 'error') && !isGiven(fields, RESULT_FIELD[adapter])) return ERROR_INSIDE;
  return { badReason: null, parsed: fields };
}

/** Own, so that neither `__proto__` nor an inherited name can count. */
function isGiven(fields: Record<string, unknown>, name: string): boolean {
  return Object.hasOwn(fields, name) && fields[name] !== null;
}
