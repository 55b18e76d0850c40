import type { ProgressDeps } from '../lib/batch/progress.ts';
import type { BoundRoute } from '../lib/http/routes.ts';
import type { PayloadStore } from '../lib/payloads/payload-store.ts';
import { MESSAGE_BATCH_ENDPOINTS, type MessageBatchesApp } from './anthropic.ts';
import { BATCH_ENDPOINTS } from './by-surface.ts';
import { below, bindEndpoints, type Endpoint, inPlaceOfVersion } from './endpoint.ts';
import { FILE_ENDPOINTS, type FilesApp } from './files.ts';
import { healthEndpoint } from './health.ts';
import type { NativeApp } from './native.ts';
import { OPENAI_BATCH_ENDPOINTS, type OpenaiApp } from './openai.ts';
import { getProgressEndpoint } from './progress.ts';
import { receiveUploadEndpoint, UPLOAD_ENDPOINTS, type UploadsApp } from './uploads.ts';
import { USAGE_ENDPOINTS, type UsageApp } from './usage.ts';

/** All that the inference port needs of the application. */
export type InferenceApp = NativeApp & FilesApp & OpenaiApp & MessageBatchesApp & UploadsApp & UsageApp & ProgressDeps;

/** Every endpoint of the three surfaces ("Which surface a call belongs to" in docs/spec/native-api.md). */
export const INFERENCE_ENDPOINTS: readonly Endpoint<InferenceApp>[] = [
  healthEndpoint,
  ...BATCH_ENDPOINTS,
  getProgressEndpoint,
  ...UPLOAD_ENDPOINTS,
  ...USAGE_ENDPOINTS,
  ...FILE_ENDPOINTS,
  ...below('/openai', FILE_ENDPOINTS),
  ...below('/openai', OPENAI_BATCH_ENDPOINTS),
  ...inPlaceOfVersion('/openai', FILE_ENDPOINTS),
  ...inPlaceOfVersion('/openai', OPENAI_BATCH_ENDPOINTS),
  ...MESSAGE_BATCH_ENDPOINTS,
  ...below('/anthropic', MESSAGE_BATCH_ENDPOINTS),
];

/** The routes of the inference port. */
export function inferenceRoutes(app: InferenceApp & { payloads: Pick<PayloadStore, 'uploadLink'> }): BoundRoute[] {
  // A store that signs URLs takes uploads itself.
  const receives = app.payloads.uploadLink === undefined;
  return bindEndpoints(
    INFERENCE_ENDPOINTS.filter((one) => receives || one !== receiveUploadEndpoint),
    app,
  );
}
