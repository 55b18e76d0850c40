import { cancel as cancelHandler } from './cancel.ts';
import { get as getHandler } from './get.ts';
import { health as healthHandler } from './health.ts';
import { list as listHandler } from './list.ts';
import { onLambda } from './on-lambda.ts';
import { remove as removeHandler } from './remove.ts';
import { results as resultsHandler } from './results.ts';
import { submit as submitHandler } from './submit.ts';
import { sweep as sweepHandler } from './sweep.ts';
import { upload as uploadHandler } from './upload.ts';
import { usageHandler } from './usage.ts';
import { worker as workerHandler } from './worker.ts';

// The functions of serverless.yml, by the names of its `handler` entries.

/** `GET /healthz` */
export const health = onLambda(healthHandler);
/** `POST /v1/batches` */
export const submit = onLambda(submitHandler);
/** `POST /v1/uploads` */
export const upload = onLambda(uploadHandler);
/** `GET /v1/batches` */
export const list = onLambda(listHandler);
/** `GET /v1/batches/{id}` */
export const get = onLambda(getHandler);
/** `DELETE /v1/batches/{id}` */
export const remove = onLambda(removeHandler);
/** `GET /v1/batches/{id}/results` */
export const results = onLambda(resultsHandler);
/** `POST /v1/batches/{id}/cancel` */
export const cancel = onLambda(cancelHandler);
/** `GET /v1/usage/events|summary|timeseries` */
export const usage = onLambda(usageHandler);
/** Event source: the queue of wake-ups. */
export const worker = onLambda(workerHandler);
/** Schedule: each minute, and each hour with `{"housekeep": true}`. */
export const sweep = onLambda(sweepHandler);
