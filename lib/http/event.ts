import type { APIGatewayProxyEventV2, Context } from 'aws-lambda';
import { type BodyAccount, UNCOUNTED } from '../base/body-budget.ts';
import { uuidv7 } from '../base/clock.ts';
import { ApiError } from '../base/errors.ts';
import type { PayloadRef } from '../payloads/payload-store.ts';

/** A request as API Gateway HTTP API (payload format 2.0) sends it; the Node adapter builds the same value. */
export type ApiEvent = APIGatewayProxyEventV2;

interface ResultHead {
  statusCode: number;
  headers: Record<string, string>;
  /** The batch it was about, for the access log. */
  batchId?: string;
  /** Work that continues after the answer. Where the process is frozen then, the adapter waits for it. Never rejects. */
  background?: Promise<unknown>;
}

/** An answer that is one text, or only a head. */
export interface BodyResult extends ResultHead {
  body?: string;
  stream?: undefined;
}

/** An answer of any length. The adapter decides how it gets to the caller. */
export interface StreamResult extends ResultHead {
  /** The bytes, read on demand. A throw before the first one can still become an error answer. */
  stream: AsyncIterable<Buffer>;
  /** Bytes of the stream; null where only reading it would tell. */
  length: number | null;
  /** Where the bytes are in the payload store: the stream is all of this object or one range of it. Else null. */
  object: PayloadRef | null;
  /**
   * The same answer, cut to a page that says where the next one begins, for an adapter that cannot send any length. An
   * item of more than `singleMaxBytes` is shown without its bytes.
   */
  page?(singleMaxBytes: number | null): AsyncIterable<Buffer>;
  /** Told of each chunk of the stream when the system has its bytes, so that its memory can be used again. */
  sent?(chunk: Buffer): void;
}

/** A handler's answer. It is the same for every adapter. */
export type ApiResult = BodyResult | StreamResult;

/** The function that serves a route. The adapters call it: `node.ts` in an HTTP server, `lambda.ts` on Lambda. */
export type ApiHandler = (event: ApiEvent, context: Context) => Promise<ApiResult>;

// Raw bytes travel beside the event: as base64 text inside it, a 32 MiB body would cost two copies and 43 MiB more.
const bodies = new WeakMap<ApiEvent, { body: Buffer; account: BodyAccount }>();

/** Attaches the body as bytes, the Node adapter's way round base64, and what is counted for it. */
export function attachBody(event: ApiEvent, body: Buffer, account: BodyAccount): void {
  bodies.set(event, { body, account });
}

/** Where a handler reserves the memory of what it makes of the body. It holds until the handler has answered. */
export function accountOf(event: ApiEvent): BodyAccount {
  return bodies.get(event)?.account ?? UNCOUNTED;
}

const streams = new WeakMap<ApiEvent, AsyncIterable<Uint8Array>>();

/** Attaches the body as it comes. */
export function attachStream(event: ApiEvent, body: AsyncIterable<Uint8Array>): void {
  streams.set(event, body);
}

/** The body in pieces; throws when the client goes away in mid-body. */
export function streamOf(event: ApiEvent): AsyncIterable<Uint8Array> {
  return streams.get(event) ?? pieces(bodyOf(event));
}

async function* pieces(body: Buffer): AsyncGenerator<Uint8Array> {
  if (body.length > 0) yield body;
}

/** The body's own bytes; empty without one. Base64 is decoded only where no bytes were attached. */
export function bodyOf(event: ApiEvent): Buffer {
  const attached = bodies.get(event);
  if (attached !== undefined) return attached.body;
  return Buffer.from(event.body ?? '', event.isBase64Encoded ? 'base64' : 'utf8');
}

/** The query as it was sent: `queryStringParameters` joins repeated ones with commas, which loses where they end. */
export function queryOf(event: ApiEvent): URLSearchParams {
  return new URLSearchParams(event.rawQueryString);
}

/** The value of `{name}` in the route; throws `not_found` when the route has none. */
export function pathParameter(event: ApiEvent, name: string): string {
  const value = event.pathParameters?.[name];
  if (value === undefined) throw new ApiError('not_found');
  return value;
}

/** A name, an IPv4 address or an IPv6 one in brackets. Clients send their key to what is made of it. */
const HOST = /^(?:[\w.-]+|\[[\da-f:.]+\])(?::\d{1,5})?$/i;

/**
 * How callers reach the inference port, without a slash at its end: as configured, else as this one did, which can mislead
 * nobody but itself. Throws `invalid_value` for a request without Host, or with one that is not a host and perhaps a port.
 */
export function originOf(event: ApiEvent, publicUrl: string | null): string {
  if (publicUrl !== null) return publicUrl.replace(/\/+$/, '');
  const scheme = event.headers['x-forwarded-proto'] === 'https' ? 'https' : 'http';
  const host = event.requestContext.domainName;
  if (!host) throw new ApiError('invalid_value', 'Host is required', { param: 'Host' });
  if (!HOST.test(host))
    throw new ApiError('invalid_value', 'Host must be a host and perhaps a port', { param: 'Host' });
  return `${scheme}://${host}`;
}

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
