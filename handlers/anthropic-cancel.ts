import { ApiError } from '../lib/base/errors.ts';
import type { CancelDeps } from '../lib/batch/cancel.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { cancelMessageBatch } from '../lib/surfaces/anthropic/cancel.ts';
import { type AnthropicApp, messageBatchAnswer, messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated } from './middleware.ts';

export interface AnthropicCancelApp extends AnthropicApp, CancelDeps {
  db: CancelDeps['db'];
  /** Writes the results of batches whose items are all final; never rejects. */
  compact(batchIds: readonly string[]): Promise<void>;
}

/** `POST /v1/messages/batches/{id}/cancel`; body and content type are ignored. */
export function cancelMessageBatchHandler(app: AnthropicCancelApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await cancelMessageBatch(app, messageBatchKey(event, owner));
    if (row === null) throw new ApiError('not_found');
    const answer = messageBatchAnswer(app, event, row);
    if (row.completed_at === null || row.results_id !== null) return answer;
    // Nothing ran any more: no worker will end it. The sweep would, some seconds later.
    return { ...answer, background: app.compact([row.id]) };
  };
  return authenticated(app, handle);
}
