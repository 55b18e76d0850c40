import { Buffer } from 'node:buffer';
import type { Context } from 'aws-lambda';
import { type Clock, uuidv7 } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { PAGE_BYTES } from '../batch/results/results.ts';
import type { PayloadRef, PayloadStore } from '../payloads/payload-store.ts';
import { errorForm } from './error-form.ts';
import { type ApiEvent, type ApiHandler, requestIdHeaders, requestIdOf, type StreamResult } from './event.ts';
import { renderError } from './render.ts';

/** An answer as a Lambda function returns it to API Gateway. */
export interface LambdaResult {
  statusCode: number;
  headers: Record<string, string>;
  body?: string;
  isBase64Encoded?: boolean;
}

export type LambdaHandler = (event: ApiEvent, context: Context) => Promise<LambdaResult>;

/** The parts of the application that the adapter uses. */
export interface LambdaDeps {
  payloads: Pick<PayloadStore, 'size' | 'link' | 'write'>;
  clock: Clock;
  log: Log;
}

/** A page and its frame. Only a page of one larger item is longer. */
const ANSWER_BYTES = PAGE_BYTES + 1000;

/** How long a signed URL is good: enough for a slow start, too short to be passed around. */
const LINK_SECONDS = 900;

/**
 * Makes a handler a Lambda function. Its answer is one value of at most 6 MB: a stream is collected into it as base64, and
 * what is larger becomes a 303 to a signed URL of the store. The process is frozen after the answer, so the adapter waits for
 * the work that a handler left in the background.
 */
export function forLambda(run: ApiHandler, deps: LambdaDeps): LambdaHandler {
  return async (event, context) => {
    const result = await run(event, context);
    await result.background;
    if (result.stream === undefined) {
      const { statusCode, headers, body } = result;
      return { statusCode, headers, ...(body === undefined ? {} : { body }) };
    }
    try {
      return await collected(event, result, deps);
    } catch (error) {
      const requestId = requestIdOf(event);
      const form = errorForm(event.rawPath, event.headers);
      const { statusCode, headers, body = '' } = renderError(error, requestId, deps.log, form);
      return { statusCode, headers: { ...headers, ...requestIdHeaders(requestId) }, body };
    }
  };
}

async function collected(
  event: ApiEvent,
  result: StreamResult,
  { payloads, clock }: LambdaDeps,
): Promise<LambdaResult> {
  const { statusCode, headers, object, length } = result;
  if (event.requestContext.http?.method === 'HEAD') return { statusCode, headers };
  const canLink = payloads.link !== undefined;
  // The link is to the whole object: clients send their `Range` again when they follow a redirect.
  const redirect = async (ref: PayloadRef): Promise<LambdaResult> => {
    const location = await payloads.link!(ref, LINK_SECONDS, headers['content-type']);
    return { statusCode: 303, headers: { location, ...requestIdHeaders(requestIdOf(event)) } };
  };
  if (canLink && object !== null && (length ?? (await payloads.size(object))) > PAGE_BYTES) return redirect(object);

  const bytes = await collect(result.page?.(canLink ? null : PAGE_BYTES) ?? result.stream);
  if (canLink && bytes.length > ANSWER_BYTES) {
    // Nothing refers to this object: the orphan sweep deletes it after a day.
    const aside: PayloadRef = { kind: 'result', id: uuidv7(clock.now()) };
    await payloads.write(aside, [bytes]);
    return redirect(aside);
  }
  // Base64, because item bytes need not be valid UTF-8 and must not change.
  return { statusCode, headers, isBase64Encoded: true, body: bytes.toString('base64') };
}

async function collect(stream: AsyncIterable<Buffer>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  return Buffer.concat(chunks);
}
