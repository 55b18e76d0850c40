import { API_ERRORS, ApiError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { isDatabaseAway } from '../db/errors.ts';
import { StorageFull } from '../payloads/payload-store.ts';
import { isStoreAway } from '../payloads/store-away.ts';
import { type ErrorForm, errorBody } from './error-form.ts';
import type { BodyResult } from './event.ts';

/** Seconds in the Retry-After of a 503: about as long as a restart of Postgres or of a replica takes. */
const RETRY_AFTER_SECONDS = '5';

const JSON_HEADERS = { 'content-type': 'application/json' };

/** A JSON answer from text that is already JSON. */
export function jsonText(statusCode: number, body: string, headers: Record<string, string> = {}): BodyResult {
  return { statusCode, headers: { ...JSON_HEADERS, ...headers }, body };
}

/** A JSON answer. */
export function json(statusCode: number, value: unknown, headers: Record<string, string> = {}): BodyResult {
  return jsonText(statusCode, JSON.stringify(value), headers);
}

/**
 * Content-Disposition of a file. A name that is not plain ASCII stands there twice: in characters that every client can
 * read, and whole (RFC 6266, RFC 8187). It may hold anything but control characters and lone surrogates.
 */
export function attachment(name: string): string {
  const plain = name.replace(/[^\x20-\x7e]|["\\%]/gu, '_');
  if (plain === name) return `attachment; filename="${name}"`;
  const whole = encodeURIComponent(name).replace(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);
  return `attachment; filename="${plain}"; filename*=UTF-8''${whole}`;
}

/**
 * The one exit of errors: whatever was thrown becomes an answer here. Nothing of 500 and above shows its own message:
 * the log has it, under the request id. An unavailable database or store and a full
 * store are 503 with Retry-After, not 500.
 */
export function renderError(error: unknown, requestId: string, log: Log, form: ErrorForm): BodyResult {
  const known = asApiError(error);
  if (known.status >= 500) {
    const level = known.code === 'internal' ? 'error' : 'warn';
    log[level]({ requestId, code: known.code, err: describe(error) }, 'request failed');
  }
  const { code, param, status } = known;
  const message = status >= 500 ? API_ERRORS[code].message : known.message;
  const retry: Record<string, string> = status === 503 ? { 'retry-after': RETRY_AFTER_SECONDS } : {};
  // The official clients repeat a 409, which helps only where something is still on its way.
  if (status === 409 && code !== 'upload_incomplete') retry['x-should-retry'] = 'false';
  const body = errorBody(form, { code, message, param, status, requestId });
  return jsonText(status, body, { ...retry, ...known.headers });
}

function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof StorageFull) return new ApiError('storage_full', undefined, { cause: error });
  if (isDatabaseAway(error) || isStoreAway(error)) return new ApiError('not_ready', undefined, { cause: error });
  return new ApiError('internal', undefined, { cause: error });
}

/** Name, message, stack and causes; never the parameters of a statement, which pg puts beside the message. */
function describe(error: unknown): Record<string, unknown> {
  if (!(error instanceof Error)) return { message: String(error) };
  const { name, message, stack, cause } = error;
  return { name, message, stack, ...(cause === undefined ? {} : { cause: reasonOf(cause) }) };
}
