import type { CallClass } from './call-result.ts';

/** Retry-After up to this many milliseconds is a short limit: another key is tried, and no breaker opens. */
const SHORT_RETRY_MS = 5_000;

/** A time-out, a conflict and "too early": the same request may succeed when it is sent again. */
const TRANSIENT_STATUSES: ReadonlySet<number> = new Set([408, 409, 425]);

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
  if (TRANSIENT_STATUSES.has(status)) return 'transient';
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
  return isNoCredit(asRecord(Array.isArray(parsed) ? parsed[0] : parsed).error);
}

/** Whether this `error` of an answer says that the account has no credit. */
export function isNoCredit(told: unknown): boolean {
  const error = asRecord(told);
  if (ACCOUNT_CODES.has(error.code) || ACCOUNT_CODES.has(error.type)) return true;
  const text = typeof told === 'string' ? told : error.message;
  return typeof text === 'string' && ACCOUNT_TEXT.test(text);
}

function asRecord(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}
