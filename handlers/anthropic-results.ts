import { PAGE_BYTES } from '../lib/batch/results/results.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import type { PayloadStore } from '../lib/payloads/payload-store.ts';
import { findMessageResults, type MessageResultsDeps, messageResultBytes } from '../lib/surfaces/anthropic/results.ts';
import { messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** How long a link is good: enough for a slow start, too short to be passed around. */
const LINK_SECONDS = 900;
const JSONL = 'application/x-jsonl';

export interface AnthropicResultsApp extends GateDeps, MessageResultsDeps {
  payloads: MessageResultsDeps['payloads'] & Pick<PayloadStore, 'link'>;
  /** True in the container. On Lambda an answer is one value of at most 6 MB. */
  streaming: boolean;
}

/** `GET /v1/messages/batches/{id}/results` */
export function messageBatchResultsHandler(app: AnthropicResultsApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const key = messageBatchKey(event, owner);
    const results = await findMessageResults(app, key);
    const answer = { statusCode: 200, headers: { 'content-type': JSONL }, batchId: key.id };
    if (app.streaming) return { ...answer, stream: messageResultBytes(app, results) };
    if (results.bytes > PAGE_BYTES && app.payloads.link) {
      const location = await app.payloads.link(results.ref, LINK_SECONDS, JSONL);
      return { ...answer, statusCode: 303, headers: { location } };
    }
    const chunks: Buffer[] = [];
    for await (const chunk of messageResultBytes(app, results)) chunks.push(chunk);
    // Base64, because item bytes need not be valid UTF-8 and must not change.
    return { ...answer, isBase64Encoded: true, body: Buffer.concat(chunks).toString('base64') };
  };
  return authenticated(app, handle);
}
