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

/** Statuses with which providers say that an account has no credit, beside 402. */
const ACCOUNT_STATUSES: ReadonlySet<number> = new Set([400, 403, 429]);

/** `error.code` or `error.type`: OpenAI's, Anthropic's and Moonshot's. A caller cannot make an upstream echo them. */
const ACCOUNT_CODES: ReadonlySet<unknown> = new Set([
  'insufficient_quota',
  'insufficient_balance',
  'billing_error',
  'billing_hard_limit_reached',
  'billing_not_active',
  'organization_usage_limit_exceeded',
  'organization_spend_limit_exceeded',
  'project_spend_limit_exceeded',
  'exceeded_current_quota_error',
  'payment_required',
]);

/**
 * How a message begins where no code tells: Anthropic's and xAI's. Only the beginning counts, because upstreams repeat
 * parts of a bad request further on, and no request may open the breaker of a key. Not "You exceeded your current quota":
 * Gemini says so of limits by the minute.
 */
const ACCOUNT_TEXT =
  /^(your credit balance is too low|you have reached your specified (workspace )?api usage limits|your newly created team doesn't have any credits|your team \S{1,64} has either used all available credits)/i;

/** Larger error bodies are not parsed. */
const ERROR_MOST_BYTES = 16 * 1024;

/**
 * The class of a final status with its body, where the body tells more: an account without credit is not a fault of
 * the request, whatever the status says.
 */
export function classOfError(status: number, retryAfterMs: number | null, body: Buffer | null): CallClass {
  const byStatus = classOfStatus(status, retryAfterMs);
  if (!ACCOUNT_STATUSES.has(status) || body === null || body.length > ERROR_MOST_BYTES) return byStatus;
  return saysNoCredit(body) ? 'account' : byStatus;
}

function saysNoCredit(body: Buffer): boolean {
  let parsed: unknown;
  try {
    parsed = JSON.parse(body.toString());
  } catch {
    return false;
  }
  // Gemini puts its error into an array of one.
  const answer = asRecord(Array.isArray(parsed) ? parsed[0] : parsed);
  const error = asRecord(answer.error);
  if (ACCOUNT_CODES.has(error.code) || ACCOUNT_CODES.has(error.type)) return true;
  const text = typeof answer.error === 'string' ? answer.error : error.message;
  return typeof text === 'string' && ACCOUNT_TEXT.test(text);
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}

/** The judgement of a 2xx body. For a response `badReason` is null, and `parsed` is the body, or its parts. */
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
