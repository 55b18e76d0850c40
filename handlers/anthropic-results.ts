import type { ApiHandler } from '../lib/http/event.ts';
import { findMessageResults, type MessageResultsDeps, messageResultBytes } from '../lib/surfaces/anthropic/results.ts';
import { messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export type AnthropicResultsApp = GateDeps & MessageResultsDeps;

/** `GET /v1/messages/batches/{id}/results` */
export function messageBatchResultsHandler(app: AnthropicResultsApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const key = messageBatchKey(event, owner);
    const results = await findMessageResults(app, key);
    return {
      statusCode: 200,
      headers: { 'content-type': 'application/x-jsonl' },
      batchId: key.id,
      stream: messageResultBytes(app, results),
      length: results.bytes,
      object: results.ref,
    };
  };
  return authenticated(app, handle);
}
