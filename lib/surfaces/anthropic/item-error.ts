import type { Steps } from '../../base/turns.ts';
import type { FinalItem } from '../../batch/results/final-items.ts';
import { errorDocument, findMembersInSteps, type Span } from '../../json/members.ts';
import { isUtf8InSteps } from '../../json/utf8.ts';
import type { ErrorKind } from '../../model/usage-event.ts';

/** The reason of an errored request, as this API tells it. */
export interface ItemError {
  type: string;
  /** A JSON string: the upstream's own bytes where it said why. */
  message: Buffer;
  /** The same for the id that the upstream chose for the call; null when it named none. */
  requestId: Buffer | null;
}

/** The types of the Anthropic API's errors. */
const KNOWN: ReadonlySet<string> = new Set([
  'invalid_request_error',
  'authentication_error',
  'billing_error',
  'permission_error',
  'not_found_error',
  'conflict_error',
  'request_too_large',
  'rate_limit_error',
  'timeout_error',
  'api_error',
  'overloaded_error',
]);

/** Its documented types by HTTP status; other 4xx are `invalid_request_error`, the rest is `api_error`. */
const BY_STATUS: Readonly<Record<number, string>> = {
  401: 'authentication_error',
  402: 'billing_error',
  403: 'permission_error',
  404: 'not_found_error',
  408: 'timeout_error',
  409: 'conflict_error',
  413: 'request_too_large',
  429: 'rate_limit_error',
  504: 'timeout_error',
  529: 'overloaded_error',
};

/** For requests that no upstream refused: what kept them from an answer. */
const BY_KIND: Readonly<Record<ErrorKind, string>> = {
  credential: 'authentication_error',
  invalid_request: 'invalid_request_error',
  cross_shape: 'invalid_request_error',
  model_not_found: 'not_found_error',
  model_disabled: 'not_found_error',
  policy_not_found: 'permission_error',
  policy_disabled: 'permission_error',
  model_not_allowed: 'permission_error',
  no_host_binding: 'api_error',
  no_keys: 'api_error',
  keys_exhausted: 'overloaded_error',
  rate_limited: 'rate_limit_error',
  upstream_error: 'api_error',
  upstream_unreachable: 'api_error',
  bad_response: 'api_error',
  timeout: 'timeout_error',
  cancelled: 'api_error',
  worker_lost: 'api_error',
  internal: 'api_error',
};

const QUOTE = 0x22;
const MAX_TYPE_BYTES = 64;
const PREFIX = 'batch item: ';

/**
 * The error of a discarded item. Type and message are the upstream's where its body has them (the type only if this API
 * knows it). Else the type follows from the status, or from the reason why the item has no answer, and the text is ours.
 */
export function* itemError({ error, errorKind, status, body }: FinalItem): Steps<ItemError> {
  const told = body === null ? NOTHING : yield* read(body);
  return {
    type: told.type ?? typeOf(errorKind, status),
    message: told.message ?? jsonString((error ?? '').replace(PREFIX, '')),
    requestId: told.requestId,
  };
}

function typeOf(kind: ErrorKind | null, status: number | null): string {
  if (kind === 'timeout' || status === null || status < 400) return kind === null ? 'api_error' : BY_KIND[kind];
  return BY_STATUS[status] ?? (status < 500 ? 'invalid_request_error' : 'api_error');
}

type Told = { type: string | null; message: Buffer | null; requestId: Buffer | null };
const NOTHING: Told = { type: null, message: null, requestId: null };

/**
 * Reads an upstream's error body: `{"error":{"type","message"},"request_id"}`, of which anything may be missing, also
 * in a list of one.
 */
function* read(body: Buffer): Steps<Told> {
  if (!(yield* isUtf8InSteps(body))) return NOTHING;
  const whole = yield* errorDocument(body);
  if (whole === null) return NOTHING;
  const document = body.subarray(whole.start, whole.end);
  const outer = yield* findMembersInSteps(document, ['error', 'request_id']);
  if (outer.kind !== 'object') return NOTHING;
  const requestId = stringAt(document, outer.members.get('request_id'));
  const span = outer.members.get('error');
  const error = span ? document.subarray(span.start, span.end) : document.subarray(0, 0);
  const inner = yield* findMembersInSteps(error, ['type', 'message']);
  if (inner.kind !== 'object') return { ...NOTHING, requestId };
  const type = stringAt(error, inner.members.get('type'));
  const name = type !== null && type.length <= MAX_TYPE_BYTES ? String(JSON.parse(type.toString())) : '';
  return { type: KNOWN.has(name) ? name : null, message: stringAt(error, inner.members.get('message')), requestId };
}

/** The bytes of a JSON string that is not empty; null for anything else. */
function stringAt(bytes: Buffer, span: Span | undefined): Buffer | null {
  if (span === undefined || bytes[span.start] !== QUOTE || span.end - span.start <= 2) return null;
  return bytes.subarray(span.start, span.end);
}

/** Line separators are escaped in text of our own: some readers of JSONL split on them. */
function jsonString(text: string): Buffer {
  return Buffer.from(JSON.stringify(text).replace(/[\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16)}`));
}
