import type { RemoveDeps } from '../lib/batch/remove.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import { type AnthropicCancelApp, cancelMessageBatchHandler } from './anthropic-cancel.ts';
import { type AnthropicCreateApp, createMessageBatchHandler } from './anthropic-create.ts';
import { getMessageBatchHandler } from './anthropic-get.ts';
import { listMessageBatchesHandler } from './anthropic-list.ts';
import { removeMessageBatchHandler } from './anthropic-remove.ts';
import { type AnthropicResultsApp, messageBatchResultsHandler } from './anthropic-results.ts';

/** All that message batches need of the application. */
export type MessageBatchesApp = AnthropicCreateApp & AnthropicResultsApp & AnthropicCancelApp & RemoveDeps;

/** The handlers of message batches by the names that a route table uses. The create wants its body as a stream. */
export function messageBatchHandlers(app: MessageBatchesApp): Record<MessageBatchHandlerName, ApiHandler> {
  return {
    createMessageBatch: createMessageBatchHandler(app),
    listMessageBatches: listMessageBatchesHandler(app),
    getMessageBatch: getMessageBatchHandler(app),
    removeMessageBatch: removeMessageBatchHandler(app),
    messageBatchResults: messageBatchResultsHandler(app),
    cancelMessageBatch: cancelMessageBatchHandler(app),
  };
}

export type MessageBatchHandlerName =
  | 'createMessageBatch'
  | 'listMessageBatches'
  | 'getMessageBatch'
  | 'removeMessageBatch'
  | 'messageBatchResults'
  | 'cancelMessageBatch';
