import { apiFunction, onLambda } from './on-lambda.ts';
import { sweep as sweepHandler } from './sweep.ts';
import { worker as workerHandler } from './worker.ts';

// The functions of serverless.yml, by the names of its `handler` entries. Each endpoint names its function itself
// (`lambda: 'submit'`). A test compares serverless.yml with both.

const api = (name: string) => onLambda((app) => apiFunction(name, app));

export const health = api('health');
export const submit = api('submit');
export const upload = api('upload');
export const list = api('list');
export const get = api('get');
export const remove = api('remove');
export const results = api('results');
export const cancel = api('cancel');
export const usage = api('usage');
export const openai = api('openai');
export const messageBatches = api('messageBatches');
/** Event source: the queue of wake-ups. */
export const worker = onLambda(workerHandler);
/** Schedule: each minute, and each hour with `{"housekeep": true}`. */
export const sweep = onLambda(sweepHandler);
