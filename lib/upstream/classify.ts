import { isUtf8 } from 'node:buffer';
import type { CallClass, CallRequest, CallResult } from './call-result.ts';
import { topLevelMembers } from './item-body.ts';

/** Retry-After up to this many milliseconds is a short limit: another key is tried, and no breaker opens. */
const SHORT_RETRY_MS = 5_000;

/** Bodies from this size on are validated in place and not built: 1 MiB of JSON.parse is about 10 ms. */
const PARSE_BELOW_BYTES = 1024 * 1024;

/** The result field of each wire format: an object that has it is a response, even beside an `error`. */
const RESULT_FIELD: Record<CallRequest['adapter'], string> = {
  openai: 'choices',
  openai_responses: 'output',
  anthropic: 'content',
  openai_embeddings: 'data',
};

/**
 * The class of a final status ("Upstream outcome classes" in docs/spec/gateway-rules.md); 2xx are judged by their body,
 * so `success` here is provisional.
 */
export function classOfStatus(status: number, retryAfterMs: number | null): CallClass {
  if (status >= 200 && status < 300) return 'success';
  if (status === 401) return 'auth';
  if (status === 403) return 'forbidden';
  if (status === 429)
    return retryAfterMs !== null && retryAfterMs > SHORT_RETRY_MS ? 'rate_limit_long' : 'rate_limit_short';
  if (status >= 500 && status < 600) return 'server_error';
  return 'client_error';
}

/** What a 2xx body is: `badReason` null for a response, and then `parsed` below 1 MiB. */
export interface Judgement {
  badReason: CallResult['badReason'];
  parsed: unknown;
}

const NOT_JSON: Judgement = { badReason: 'not_json', parsed: undefined };
const NO_RESPONSE: Judgement = { badReason: 'no_response', parsed: undefined };
const ERROR_INSIDE: Judgement = { badReason: 'error_inside', parsed: undefined };
const UNPARSED: Judgement = { badReason: null, parsed: undefined };

/**
 * Judges the decoded body of a 2xx answer ("Judgement of a 2xx answer" in docs/spec/gateway-rules.md): not JSON or not
 * UTF-8 (an empty body too); JSON but no object; an object with a non-null `error` and without the shape's result
 * field. A result field that is null counts as absent: `{"error":{},"choices":null}` answers nothing.
 */
export function judgeBody(adapter: CallRequest['adapter'], body: Buffer): Judgement {
  if (body.length >= PARSE_BELOW_BYTES) return judgeLarge(adapter, body);
  if (!isUtf8(body)) return NOT_JSON;
  let parsed: unknown;
  try {
    // JSON.parse refuses a byte order mark, and so must we: the bytes are put into the results document as they are.
    parsed = JSON.parse(body.toString());
  } catch {
    return NOT_JSON;
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return NO_RESPONSE;
  const fields = parsed as Record<string, unknown>;
  if (isGiven(fields, 'error') && !isGiven(fields, RESULT_FIELD[adapter])) return ERROR_INSIDE;
  return { badReason: null, parsed };
}

function judgeLarge(adapter: CallRequest['adapter'], body: Buffer): Judgement {
  const field = RESULT_FIELD[adapter];
  const found = topLevelMembers(body, ['error', field]);
  if (found.kind === 'invalid') return NOT_JSON;
  if (found.kind === 'not_object') return NO_RESPONSE;
  const given = (name: string) => {
    const span = found.members.get(name);
    return span !== undefined && body.toString('latin1', span.start, Math.min(span.end, span.start + 5)) !== 'null';
  };
  return given('error') && !given(field) ? ERROR_INSIDE : UNPARSED;
}

/** Own, so that neither `__proto__` nor an inherited name can count. */
function isGiven(fields: Record<string, unknown>, name: string): boolean {
  return Object.hasOwn(fields, name) && fields[name] !== null;
}
