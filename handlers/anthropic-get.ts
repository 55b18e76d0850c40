import { ApiError } from '../lib/base/errors.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { findMessageBatch } from '../lib/surfaces/anthropic/message-batches.sql.ts';
import { type AnthropicApp, messageBatchAnswer, messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated } from './middleware.ts';

/** `GET /v1/messages/batches/{id}` */
export function getMessageBatchHandler(app: AnthropicApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const row = await findMessageBatch(app.db, messageBatchKey(event, owner));
    if (row === null) throw new ApiError('not_found');
    return messageBatchAnswer(app, event, row);
  };
  return authenticated(app, handle);
}
