import type { GetDeps } from '../lib/batch/get.ts';
import type { RemoveDeps } from '../lib/batch/remove.ts';
import type { ApiHandler } from '../lib/http/event.ts';
import type { NativeHandlerName } from '../lib/http/routes.ts';
import { type CancelApp, cancel } from './cancel.ts';
import { get } from './get.ts';
import { health } from './health.ts';
import { list } from './list.ts';
import { remove } from './remove.ts';
import { type ResultsApp, results } from './results.ts';
import { type SubmitApp, submit } from './submit.ts';
import { type UploadApp, upload } from './upload.ts';

/** All that the native API needs of the application. */
export type NativeApp = SubmitApp & GetDeps & ResultsApp & CancelApp & RemoveDeps & UploadApp;

/** The native handlers by the names that the route table uses. */
export function nativeHandlers(app: NativeApp): Record<NativeHandlerName, ApiHandler> {
  return {
    health: health(app),
    submit: submit(app),
    upload: upload(app),
    list: list(app),
    get: get(app),
    remove: remove(app),
    results: results(app),
    cancel: cancel(app),
  };
}
