/**
 * Every error a caller can see: code -> HTTP status and default message. Codes are a contract (docs/errors.md is
 * checked against this table).
 */
export const API_ERRORS = {
  missing_api_key: { status: 401, message: 'missing relay key' },
  invalid_api_key: { status: 401, message: 'invalid api key' },
  api_key_disabled: { status: 401, message: 'api key disabled' },
  api_key_revoked: { status: 401, message: 'api key revoked' },
  api_key_expired: { status: 401, message: 'api key expired' },
  api_key_rotated: { status: 401, message: 'api key rotated' },
  invalid_token: { status: 401, message: 'invalid token' },
  token_expired: { status: 401, message: 'token expired' },
  token_revoked: { status: 401, message: 'token revoked' },
  no_policy: { status: 403, message: 'no policy governs this credential' },
  policy_disabled: { status: 403, message: 'policy disabled' },
  not_found: { status: 404, message: 'not found' },
  method_not_allowed: { status: 405, message: 'method not allowed' },
  invalid_json: { status: 400, message: 'request body is not valid JSON' },
  missing_required_parameter: { status: 400, message: 'missing required parameter' },
  invalid_value: { status: 400, message: 'invalid value' },
  too_many_items: { status: 400, message: 'too many items' },
  body_too_large: { status: 400, message: 'request body too large' },
  unsupported_media_type: { status: 415, message: 'Content-Encoding is not supported' },
  idempotency_conflict: { status: 409, message: 'Idempotency-Key was used with another body' },
  upload_used: { status: 409, message: 'upload was used by another batch' },
  upload_incomplete: { status: 409, message: 'upload has not arrived yet' },
  batch_not_finished: { status: 409, message: 'batch is not finished' },
  conflict: { status: 409, message: 'conflict' },
  too_many_pending: { status: 429, message: 'too many pending items' },
  too_many_streams: { status: 429, message: 'too many open streams' },
  storage_full: { status: 503, message: 'payload storage is full or cannot be written' },
  overloaded: { status: 503, message: 'too many request bodies are in work' },
  not_ready: { status: 503, message: 'not ready' },
  schema_outdated: { status: 503, message: 'database schema is outdated: run relay-batch migrate' },
  internal: { status: 500, message: 'internal error' },
} as const satisfies Record<string, { status: number; message: string }>;

export type ApiErrorCode = keyof typeof API_ERRORS;

/** An error meant for the caller. It becomes HTTP in one place: `lib/http/render.ts`. */
export class ApiError extends Error {
  readonly code: ApiErrorCode;
  readonly status: number;
  readonly param: string | null;
  readonly headers: Record<string, string>;

  constructor(
    code: ApiErrorCode,
    message?: string,
    options: { param?: string; headers?: Record<string, string>; cause?: unknown; status?: number } = {},
  ) {
    super(message ?? API_ERRORS[code].message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'ApiError';
    this.code = code;
    // Another status than the code's own only where a surface's contract says so: 413 for a file, 416 for a range.
    this.status = options.status ?? API_ERRORS[code].status;
    this.param = options.param ?? null;
    this.headers = options.headers ?? {};
  }
}

/** Thrown by our own code to undo the transaction that it is in: nobody's fault, and no caller sees it. */
export class Undone extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'Undone';
  }
}

/** A fault of configuration: the one thing besides a signal that ends the process. The message is one sentence. */
export class ConfigError extends Error {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = 'ConfigError';
  }
}

/**
 * Cuts text that a caller or an upstream controls before it is stored or put into a message. At most 128 characters,
 * control characters and lone surrogates as \uXXXX (Postgres text refuses NUL, and logs must stay on one line).
 */
export function cutText(text: string, max = 128): string {
  let out = '';
  let length = 0;
  for (const char of text) {
    if (length >= max) break;
    length++;
    const code = char.codePointAt(0)!;
    const unsafe = code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0xd800 && code <= 0xdfff);
    out += unsafe ? `\\u${code.toString(16).padStart(4, '0')}` : char;
  }
  return out;
}

/** The message of anything thrown, for logs. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
