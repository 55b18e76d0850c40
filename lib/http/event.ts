import type { APIGatewayProxyEventV2, Context } from 'aws-lambda';
import { ApiError } from '../base/errors.ts';

/** A request as API Gateway HTTP API (payload format 2.0) gives it; the Node adapter builds the same value. */
export type ApiEvent = APIGatewayProxyEventV2;

/** A handler's answer. On AWS only `statusCode`, `headers`, `body` and `isBase64Encoded` leave the function. */
export interface ApiResult {
  statusCode: number;
  headers: Record<string, string>;
  body?: string;
  isBase64Encoded?: boolean;
  /** Bytes instead of `body`: only where the deps say that streaming is there. A throw breaks the connection. */
  stream?: AsyncIterable<Buffer>;
  /** Told of each chunk of the stream when the system has its bytes, so that its memory can be used again. */
  sent?: (chunk: Buffer) => void;
  /** The batch it was about, for the access log. */
  batchId?: string;
}

/** A Lambda function for HTTP events; the Node adapter calls it in the same way. */
export type ApiHandler = (event: ApiEvent, context: Context) => Promise<ApiResult>;

// Raw bytes travel beside the event: as base64 text inside it, a 32 MiB body would cost two copies and 43 MiB more.
const bodies = new WeakMap<ApiEvent, Buffer>();

/** Gives the event its body as bytes; the Node adapter's way round base64. */
export function attachBody(event: ApiEvent, body: Buffer): void {
  bodies.set(event, body);
}

const streams = new WeakMap<ApiEvent, AsyncIterable<Uint8Array>>();

/** Gives the event its body as it comes. */
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

/** The body's own bytes; empty when there is none. Base64 is decoded only where no bytes were attached. */
export function bodyOf(event: ApiEvent): Buffer {
  const attached = bodies.get(event);
  if (attached !== undefined) return attached;
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
