import type { RemoveDeps } from '../lib/batch/remove.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { json } from '../lib/http/render.ts';
import { messageBatchId } from '../lib/surfaces/anthropic/message-batch.ts';
import { removeMessageBatch } from '../lib/surfaces/anthropic/remove.ts';
import { messageBatchKey } from './anthropic-app.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** `DELETE /v1/messages/batches/{id}` */
export function removeMessageBatchHandler(app: GateDeps & RemoveDeps): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    const key = messageBatchKey(event, owner);
    await removeMessageBatch(app, key);
    return { ...json(200, { id: messageBatchId(key.id), type: 'message_batch_deleted' }), batchId: key.id };
  };
  return authenticated(app, handle);
}
