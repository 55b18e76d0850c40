import type { ApiHandler } from '../lib/http/event.ts';
import type { CancelOpenaiDeps } from '../lib/surfaces/openai/cancel.ts';
import { cancelOpenaiBatchHandler } from './openai-cancel.ts';
import { type CreateOpenaiBatchApp, createOpenaiBatchHandler } from './openai-create.ts';
import { getOpenaiBatchHandler } from './openai-get.ts';
import { listOpenaiBatchesHandler } from './openai-list.ts';

/** All that OpenAI's batch calls need of the application. */
export type OpenaiApp = CreateOpenaiBatchApp & CancelOpenaiDeps;

/** Names of the handlers of OpenAI's batch calls in the route table. */
export type OpenaiHandlerName = 'createOpenaiBatch' | 'listOpenaiBatches' | 'getOpenaiBatch' | 'cancelOpenaiBatch';

/** The handlers of `/v1/batches` for OpenAI clients; that of `createOpenaiBatch` wants its body read. */
export function openaiHandlers(app: OpenaiApp): Record<OpenaiHandlerName, ApiHandler> {
  return {
    createOpenaiBatch: createOpenaiBatchHandler(app),
    listOpenaiBatches: listOpenaiBatchesHandler(app),
    getOpenaiBatch: getOpenaiBatchHandler(app),
    cancelOpenaiBatch: cancelOpenaiBatchHandler(app),
  };
}
