import {
  type BoundRoute,
  bindRoutes,
  FILES_ROUTES,
  MESSAGE_BATCHES_ROUTES,
  NATIVE_ROUTES,
  OPENAI_BATCHES_ROUTES,
  prefixed,
} from '../lib/http/routes.ts';
import { type MessageBatchesApp, messageBatchHandlers } from './anthropic.ts';
import { cancelBatch, createBatch, getBatch, listBatches } from './by-surface.ts';
import { type FilesApp, filesHandlers } from './files.ts';
import { type NativeApp, nativeHandlers } from './native.ts';
import { type OpenaiApp, openaiHandlers } from './openai.ts';

/** All that the inference port needs of the application. */
export type InferenceApp = NativeApp & FilesApp & OpenaiApp & MessageBatchesApp;

/**
 * Every route of the three surfaces on the inference port ("Which surface a call belongs to" in
 * docs/spec/native-api.md).
 */
export function inferenceRoutes(app: InferenceApp): BoundRoute[] {
  const shared = { submit: createBatch(app), list: listBatches(app), get: getBatch(app), cancel: cancelBatch(app) };
  return [
    ...bindRoutes(NATIVE_ROUTES, { ...nativeHandlers(app), ...shared }),
    ...openaiRoutes(app),
    ...messageBatchRoutes(app),
  ];
}

/** Files, and what is OpenAI's alone below `/openai`. */
export function openaiRoutes(app: FilesApp & OpenaiApp): BoundRoute[] {
  const files = filesHandlers(app);
  return [
    ...bindRoutes(FILES_ROUTES, files),
    ...bindRoutes(prefixed('/openai', FILES_ROUTES), files),
    ...bindRoutes(prefixed('/openai', OPENAI_BATCHES_ROUTES), openaiHandlers(app)),
  ];
}

/** Message batches, at both base URLs. */
export function messageBatchRoutes(app: MessageBatchesApp): BoundRoute[] {
  const handlers = messageBatchHandlers(app);
  return [
    ...bindRoutes(MESSAGE_BATCHES_ROUTES, handlers),
    ...bindRoutes(prefixed('/anthropic', MESSAGE_BATCHES_ROUTES), handlers),
  ];
}
