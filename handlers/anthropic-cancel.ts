import { ApiError } from '../lib/base/errors.ts';
import type { CancelDeps } from '../lib/batch/cancel.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { cancelMessageBatch } from '../lib/surfaces/anthropic/cancel.ts';
import { type AnthropicApp, messageBatchAnswer, messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated } from './middleware.ts';

export interface AnthropicCancelApp extends AnthropicApp, CancelDeps {
  db: CancelDeps['db'];
  /** False on Lambda, where nothing goes on after the answer. */
  streaming: boolean;
  /** Writes the results of batches whose items are all final; never rejects. */
  compact(batchIds: readonly string[]): Promise<void>;
}

/** `POST /v1/messages/batches/{id}/cancel`; body and content type are ignored. */
export function cancelMessageBatchHandler(app: AnthropicCancelApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await cancelMessageBatch(app, messageBatchKey(event, owner));
    if (row === null) throw new ApiError('not_found');
    if (row.completed_at !== null && row.results_id === null) {
      // Nothing ran any more: no worker will end it. The sweep would, some seconds later.
      const ended = app.compact([row.id]);
      if (!app.streaming) await ended;
    }
    return messageBatchAnswer(app, event, row);
  };
  return authenticated(app, handle);
}
