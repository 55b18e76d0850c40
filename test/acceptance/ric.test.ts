import { existsSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { APIGatewayProxyStructuredResultV2, SQSBatchResponse } from 'aws-lambda';
import { describe, expect, test } from 'vitest';
import { startPlatform, wakeEvent } from '../support/lambda.ts';
import { createTestDatabase } from '../support/postgres.ts';
import { ROOT } from '../support/root.ts';
import { type LambdaProcess, RUNTIME, startFunction } from '../support/runtime-api.ts';
import { unzip } from '../support/unzip.ts';
import { startUpstream } from '../support/upstream.ts';
import { itemsOf } from './support/calls.ts';
import { catalogOf, KEYS } from './support/catalog.ts';

const ZIP = join(ROOT, 'dist/sls/relay-batch.zip');
/** `npm run test:lambda` packages first and builds the client; the other tests may be packaging at this moment. */
const isAsked = process.env.RELAY_TEST_LAMBDA === '1';
const TIMEOUT_MS = 900_000;

const SUBMIT = 'POST /v1/batches';
const GET = 'GET /v1/batches/{id}';

interface Response {
  status: number;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of many forms
  json: any;
}

/** Makes a call of `ann` and turns the function's answer into a response, as API Gateway does. */
async function call(lambda: LambdaProcess, routeKey: string, id?: string, body?: string): Promise<Response> {
  const answer = await lambda.invoke<APIGatewayProxyStructuredResultV2>({
    version: '2.0',
    routeKey,
    rawPath: '/',
    rawQueryString: '',
    headers: { authorization: `Bearer ${KEYS.RELAY_KEY_ANN}`, 'content-type': 'application/json' },
    pathParameters: id === undefined ? undefined : { id },
    body,
    isBase64Encoded: false,
    requestContext: { requestId: 'r' },
  });
  const text = Buffer.from(answer.body ?? '', answer.isBase64Encoded ? 'base64' : 'utf8').toString();
  return { status: answer.statusCode!, json: JSON.parse(text) };
}

describe.skipIf(!isAsked || !existsSync(RUNTIME.addon))(
  'the package under the runtime client of Lambda (npm run test:lambda)',
  {
    timeout: 120_000,
  },
  () => {
    test('runs batches from submit to results, each function in a process of its own', async ({ onTestFinished }) => {
      const dir = await mkdtemp(join(tmpdir(), 'relay-lambda-'));
      const [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
      await writeFile(join(dir, 'catalog.yaml'), catalogOf(upstream.url));
      const platform = await startPlatform({ ...database, catalog: join(dir, 'catalog.yaml'), env: KEYS });
      const processes: LambdaProcess[] = [];
      onTestFinished(async () => {
        for (const one of processes) await one.stop();
        await platform.close();
        await upstream.close();
        await database.close();
        await rm(dir, { recursive: true, force: true });
      });
      await unzip(ZIP, join(dir, 'task'));
      const start = async (name: string) => {
        const lambda = await startFunction(join(dir, 'task'), `dist/lambda/handlers/lambda.${name}`, {
          env: platform.env,
          timeoutMs: TIMEOUT_MS,
        });
        processes.push(lambda);
        const began = performance.now();
        return { lambda, first: () => Math.round(performance.now() - began) };
      };

      const { lambda: submit, first } = await start('submit');
      const made = await call(submit, SUBMIT, undefined, itemsOf(20, 'ric'));
      process.stdout.write(
        `Init of submit: ${Math.round(submit.initMs)} ms; its first answer after ${first()} ms more\n`,
      );
      expect([made.status, made.json]).toEqual([202, { id: expect.any(String), status: 'queued', total_items: 20 }]);
      const again = await call(submit, SUBMIT, undefined, itemsOf(5, 'warm'));
      expect([again.status, again.json.total_items]).toEqual([202, 5]);
      expect(platform.queued().length).toBeGreaterThan(0);

      const { lambda: worker } = await start('worker');
      expect(await worker.invoke<SQSBatchResponse>(wakeEvent())).toEqual({ batchItemFailures: [] });
      const [{ lambda: get }, { lambda: results }] = [await start('get'), await start('results')];
      for (const [batch, total] of [
        [made.json.id, 20],
        [again.json.id, 5],
      ] as [string, number][]) {
        const { status, json } = await call(get, GET, batch);
        expect([status, json.counts, json.CompletedAt]).toEqual([200, { completed: total }, expect.any(String)]);
        const page = await call(results, `${GET}/results`, batch);
        expect(page.json.results.map((one: { idx: number; state: string }) => [one.idx, one.state])).toEqual(
          Array.from({ length: total }, (_, idx) => [idx, 'completed']),
        );
      }
    });

    test('tells Lambda of a function that cannot start, with the sentence that says why', async ({
      onTestFinished,
    }) => {
      const dir = await mkdtemp(join(tmpdir(), 'relay-lambda-'));
      onTestFinished(() => rm(dir, { recursive: true, force: true }));
      await unzip(ZIP, dir);
      const env = { RELAY_PAYLOAD_STORE: 's3', RELAY_PG_DSN: 'postgres://relay@127.0.0.1:9/relay' };
      const lambda = await startFunction(dir, 'dist/lambda/handlers/lambda.get', { env, timeoutMs: TIMEOUT_MS });
      onTestFinished(() => lambda.stop());
      await expect(call(lambda, GET, 'x')).rejects.toThrow('RELAY_S3_BUCKET is missing');
    });
  },
);
