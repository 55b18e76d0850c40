import { execFile } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { CreateQueueCommand, SQSClient } from '@aws-sdk/client-sqs';
import type * as Functions from '../../../handlers/lambda.ts';
import {
  type AwsServer,
  createBucket,
  hasMoto,
  startFaux,
  startMoto,
  TEST_AWS_ENV,
  TEST_CLIENT,
} from '../../support/aws.ts';
import { startPlatform } from '../../support/lambda.ts';
import { hasDocker, startLocalStack } from '../../support/localstack.ts';
import type { Setup } from '../../support/native-cases.ts';
import { createTestDatabase } from '../../support/postgres.ts';
import { ROOT } from '../../support/root.ts';
import { SERVICE_CATALOG, SERVICE_SECRETS, startService } from '../../support/service.ts';
import { startUpstream } from '../../support/upstream.ts';
import { eventually } from './calls.ts';

/** A whole service, however it is deployed, with a way behind the scenes. */
export interface Deployment extends Setup {
  /** Answers are one value of at most 6 MB; nothing continues between two invocations. */
  isLambda: boolean;
  /** Runs a statement of the test's own. */
  sql(text: string, values?: unknown[]): Promise<Record<string, unknown>[]>;
  /** Runs the sweep, as EventBridge does each minute; in the container the service's own heartbeat does it. */
  sweep(): Promise<void>;
  /** Requests of functions to the store that their roles do not allow. */
  denied: readonly string[];
}

/** The container form: HTTP through the Node adapter. */
async function container(env: Record<string, string> = {}, stop = async () => {}): Promise<Deployment> {
  const service = await startService({ env });
  return {
    upstream: service.upstream,
    isLambda: false,
    call: (call) => service.call('node', call),
    waitFinished: service.finished,
    sql: service.sql,
    sweep: async () => {},
    denied: [],
    async close() {
      await service.close();
      await stop();
    },
  };
}

async function onAws(start: () => Promise<AwsServer>): Promise<Deployment> {
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
async function lambda(load?: (env: Record<string, string>) => Promise<typeof Functions>): Promise<Deployment> {
  const dir = await mkdtemp(join(tmpdir(), 'relay-setup-'));
  const [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
  const catalog = join(dir, 'catalog.yaml');
  await writeFile(catalog, SERVICE_CATALOG(upstream.url));
  const options = load === undefined ? { roles: true } : { load };
  const platform = await startPlatform({ ...database, catalog, env: SERVICE_SECRETS, ...options });
  await platform.sweep({ housekeep: true }); // the first one makes the store's marker
  let stopped = false;
  const source = (async () => {
    while (!stopped) {
      await platform.drain();
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  })();
  return {
    upstream,
    isLambda: true,
    call: platform.call,
    async waitFinished(id) {
      const read = () => database.sql('select 1 from batches where id = $1::uuid and completed_at is not null', [id]);
      await eventually(read, (rows) => rows.length === 1, 25_000);
    },
    sql: database.sql,
    sweep: () => platform.sweep(),
    denied: platform.denied,
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
async function bundled(): Promise<Deployment> {
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

/** Every way of running the service, and whether this machine has what it takes. */
export const SETUPS: readonly [name: string, here: boolean, open: () => Promise<Deployment>][] = [
  ['files and Postgres in the container', true, () => container()],
  ['S3 and SQS (fauxqs) in the container', true, () => onAws(startFaux)],
  ['S3 and SQS (moto_server, when it is on the PATH) in the container', hasMoto(), () => onAws(startMoto)],
  ['S3 and SQS (LocalStack, when Docker answers) in the container', await hasDocker(), () => onAws(startLocalStack)],
  ['Lambda events', true, () => lambda()],
  ['Lambda events to the packaged bundle', true, bundled],
];
