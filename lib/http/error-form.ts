import type { ApiErrorCode } from '../base/errors.ts';

/** Types of the Anthropic API by status ("Anthropic errors" in docs/spec/anthropic-surface.md). */
const ANTHROPIC_TYPES: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  409: 'conflict_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  529: 'overloaded_error',
};

/** The facts that an error body is made of. */
export interface ErrorFacts {
  code: ApiErrorCode;
  message: string;
  param: string | null;
  status: number;
  requestId: string;
}

/** Whose error objects an answer has. */
export type ErrorForm = 'openai' | 'anthropic';

/**
 * The form of the errors of a request ("Error form" in docs/spec/native-api.md): Anthropic's below `/v1/messages/` and
 * `/anthropic/`, and for every client that sends `anthropic-version`.
 */
export function errorForm(path: string, headers: Readonly<Record<string, unknown>>): ErrorForm {
  const isAnthropic = path.startsWith('/v1/messages/') || path.startsWith('/anthropic/');
  return isAnthropic || headers['anthropic-version'] !== undefined ? 'anthropic' : 'openai';
}

/** The JSON of an error in its form. The OpenAI one always has its four keys. */
export function errorBody(form: ErrorForm, { code, message, param, status, requestId }: ErrorFacts): string {
  if (form === 'anthropic') {
    return JSON.stringify({ type: 'error', error: { type: anthropicType(status), message }, request_id: requestId });
  }
  const type = status < 500 ? 'invalid_request_error' : 'api_error';
  return JSON.stringify({ error: { type, message, code, param } });
}

function anthropicType(status: number): string {
  return ANTHROPIC_TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
}
