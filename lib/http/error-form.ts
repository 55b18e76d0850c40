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

/** What an error body is made of. */
export interface ErrorFacts {
  code: ApiErrorCode;
  message: string;
  param: string | null;
  status: number;
  requestId: string;
}

/** True where errors have the Anthropic form: below `/v1/messages/` and `/anthropic/`. */
function speaksAnthropic(path: string): boolean {
  return path.startsWith('/v1/messages/') || path.startsWith('/anthropic/');
}

/**
 * The JSON of an error: the Anthropic form by path, else the OpenAI one, always with its four keys ("Error form" in
 * docs/spec/native-api.md).
 */
export function errorBody(path: string, { code, message, param, status, requestId }: ErrorFacts): string {
  if (speaksAnthropic(path)) {
    return JSON.stringify({ type: 'error', error: { type: anthropicType(status), message }, request_id: requestId });
  }
  const type = status < 500 ? 'invalid_request_error' : 'api_error';
  return JSON.stringify({ error: { type, message, code, param } });
}

function anthropicType(status: number): string {
  return ANTHROPIC_TYPES[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
}
