import { cancelBatch, createBatch, getBatch, listBatches } from './by-surface.ts';
import { health as healthHandler } from './health.ts';
import { messageBatchRoutes, openaiRoutes } from './inference.ts';
import { httpOnLambda, onLambda } from './on-lambda.ts';
import { remove as removeHandler } from './remove.ts';
import { results as resultsHandler } from './results.ts';
import { routed } from './routed.ts';
import { sweep as sweepHandler } from './sweep.ts';
import { upload as uploadHandler } from './upload.ts';
import { usageRoutes } from './usage.ts';
import { worker as workerHandler } from './worker.ts';

// The functions of serverless.yml, by the names of its `handler` entries.

/** `GET /healthz` */
export const health = httpOnLambda(healthHandler);
/** `POST /v1/batches` */
export const submit = httpOnLambda(createBatch);
/** `POST /v1/uploads` */
export const upload = httpOnLambda(uploadHandler);
/** `GET /v1/batches` */
export const list = httpOnLambda(listBatches);
/** `GET /v1/batches/{id}` */
export const get = httpOnLambda(getBatch);
/** `DELETE /v1/batches/{id}` */
export const remove = httpOnLambda(removeHandler);
/** `GET /v1/batches/{id}/results` */
export const results = httpOnLambda(resultsHandler);
/** `POST /v1/batches/{id}/cancel` */
export const cancel = httpOnLambda(cancelBatch);
/** `GET /v1/usage/events|summary|timeseries` */
export const usage = httpOnLambda((app) => routed(usageRoutes(app)));
/** `/v1/files` and all below `/openai` */
export const openai = httpOnLambda((app) => routed(openaiRoutes(app)));
/** `/v1/messages/batches` and all below `/anthropic` */
export const messageBatches = httpOnLambda((app) => routed(messageBatchRoutes(app)));
/** Event source: the queue of wake-ups. */
export const worker = onLambda(workerHandler);
/** Schedule: each minute, and each hour with `{"housekeep": true}`. */
export const sweep = onLambda(sweepHandler);
