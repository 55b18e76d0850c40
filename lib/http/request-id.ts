import { uuidv7 } from '../base/clock.ts';
import type { ApiEvent } from './event.ts';

const PRINTABLE = /^[\x20-\x7e]{1,128}$/;

/** The caller's own `X-Request-ID` if it is 1-128 printable ASCII characters, else null. */
export function ownRequestId(header: string | undefined): string | null {
  return header !== undefined && PRINTABLE.test(header) ? header : null;
}

/** The id of a request: the caller's own, else the gateway's, else a new one. Stable for one event. */
export function requestIdOf(event: ApiEvent): string {
  return ownRequestId(event.headers['x-request-id']) ?? ownRequestId(event.requestContext?.requestId) ?? uuidv7();
}

/** The headers every response carries; OpenAI clients read the second one, Anthropic clients the third. */
export function requestIdHeaders(id: string): Record<string, string> {
  return { 'x-relay-request-id': id, 'x-request-id': id, 'request-id': id };
}
