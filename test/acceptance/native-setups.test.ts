import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { CreateQueueCommand, SQSClient } from '@aws-sdk/client-sqs';
import { afterAll, beforeAll, beforeEach, describe, test } from 'vitest';
import type * as Functions from '../../handlers/lambda.ts';
import {
  type AwsServer,
  createBucket,
  hasMoto,
  startFaux,
  startMoto,
  TEST_AWS_ENV,
  TEST_CLIENT,
} from '../support/aws.ts';
import { startPlatform } from '../support/lambda.ts';
import { hasDocker, LOCALSTACK_HOOK_MS, startLocalStack } from '../support/localstack.ts';
import { NATIVE_CASES, type Setup } from '../support/native-cases.ts';
import { createTestDatabase } from '../support/postgres.ts';
import { SERVICE_CATALOG, SERVICE_SECRETS, startService } from '../support/service.ts';
import { startUpstream } from '../support/upstream.ts';
import { eventually } from './support/calls.ts';

const ROOT = join(import.meta.dirname, '../..');

/** The container form: HTTP through the Node adapter. */
async function container(env: Record<string, string> = {}, stop = async () => {}): Promise<Setup> {
  const service = await startService({ env });
  return {
    upstream: service.upstream,
    call: (call) => service.call('node', call),
    waitFinished: service.finished,
    async close() {
      await service.close();
      await stop();
    },
  };
}

async function onAws(start: () => Promise<AwsServer>): Promise<Setup> {
  Object.assign(process.env, TEST_AWS_ENV); // the SDK's own credentials chain reads nothing else
  const aws = await start();
  const name = `relay-${randomUUID()}`;
  await createBucket(aws.endpoint, name);
  const sqs = new SQSClient({ ...TEST_CLIENT, endpoint: aws.endpoint });
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: name }));
  sqs.destroy();
  const env = {
    ...TEST_AWS_ENV,
    AWS_ENDPOINT_URL: aws.endpoint,
    RELAY_PAYLOAD_STORE: 's3',
    RELAY_S3_BUCKET: name,
    RELAY_QUEUE: 'sqs',
    RELAY_SQS_QUEUE_URL: QueueUrl!,
  };
  return container(env, () => aws.stop());
}

/** The Lambda form: API Gateway events, and an event source that invokes the worker with what is in the queue. */
async function lambda(load?: (env: Record<string, string>) => Promise<typeof Functions>): Promise<Setup> {
  const dir = await mkdtemp(join(tmpdir(), 'relay-setup-'));
  const [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
  const catalog = join(dir, 'catalog.yaml');
  await writeFile(catalog, SERVICE_CATALOG(upstream.url));
  const platform = await startPlatform({ ...database, catalog, env: SERVICE_SECRETS, ...(load && { load }) });
  let stopped = false;
  const source = (async () => {
    while (!stopped) {
      await platform.drain();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  })();
  return {
    upstream,
    call: platform.call,
    async waitFinished(id) {
      const read = async () => {
        const text = 'select 1 from batches where id = $1::uuid and completed_at is not null';
        return (await database.db.query({ name: 'test_finished', text, values: [id] })).rowCount;
      };
      await eventually(read, (count) => count === 1, 25_000);
    },
    async close() {
      stopped = true;
      await source;
      await platform.close();
      await upstream.close();
      await database.close();
      await rm(dir, { recursive: true, force: true });
    },
  };
}

/** The same with the functions of a bundle made for the purpose, which read the process's environment as they do there. */
async function bundled(): Promise<Setup> {
  const folder = await mkdtemp(join(tmpdir(), 'relay-bundle-'));
  await promisify(execFile)(process.execPath, ['infra/bundle.ts', folder], { cwd: ROOT });
  const before = { ...process.env };
  const setup = await lambda(async (env) => {
    Object.assign(process.env, env);
    return import(pathToFileURL(join(folder, 'handlers/lambda.mjs')).href) as Promise<typeof Functions>;
  });
  return {
    ...setup,
    async close() {
      await setup.close();
      for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
      await rm(folder, { recursive: true, force: true });
    },
  };
}

const SETUPS: readonly [name: string, here: boolean, open: () => Promise<Setup>][] = [
  ['files and Postgres in the container', true, () => container()],
  ['S3 and SQS (fauxqs) in the container', true, () => onAws(startFaux)],
  ['S3 and SQS (moto_server, when it is on the PATH) in the container', hasMoto(), () => onAws(startMoto)],
  ['S3 and SQS (LocalStack, when Docker answers) in the container', await hasDocker(), () => onAws(startLocalStack)],
  ['Lambda events', true, () => lambda()],
  ['Lambda events to the packaged bundle', true, bundled],
];

for (const [name, here, open] of SETUPS) {
  describe.skipIf(!here)(`the native API on ${name}`, () => {
    let setup: Setup;
    beforeAll(async () => {
      setup = await open();
    }, LOCALSTACK_HOOK_MS);
    afterAll(() => setup?.close());
    beforeEach(() => {
      setup.upstream.forget();
      setup.upstream.answerWith(null);
    });

    test.each(NATIVE_CASES)('%s', (_name, run) => run(setup));
  });
}
