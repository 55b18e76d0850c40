import { randomUUID } from 'node:crypto';
import { DeleteMessageCommand, type Message, ReceiveMessageCommand, SQSClient } from '@aws-sdk/client-sqs';
import type { Context, SQSBatchResponse, SQSEvent } from 'aws-lambda';
import { INFERENCE_ENDPOINTS } from '../../handlers/inference.ts';
import type * as Functions from '../../handlers/lambda.ts';
import { apiFunction, onLambda } from '../../handlers/on-lambda.ts';
import { sweep } from '../../handlers/sweep.ts';
import { worker } from '../../handlers/worker.ts';
import type { LambdaApp } from '../../lib/app/lambda.ts';
import { applyCatalog } from '../../lib/catalog/apply.ts';
import { readCatalog } from '../../lib/catalog/read.ts';
import type { Database } from '../../lib/db/database.ts';
import type { LambdaHandler } from '../../lib/http/lambda.ts';
import { createMatcher } from '../../lib/http/routes.ts';
import { createBucket, startFaux, TEST_AWS_ENV, TEST_CLIENT } from './aws.ts';
import { type Guard, startGuard } from './iam.ts';
import { type Answer, asEvent, type Call } from './native-api.ts';

/** One execution environment of the worker function: one invocation at a time, its own memory and log stream. */
export interface WorkerContainer {
  /** The app, once it was invoked. */
  app(): LambdaApp | null;
  invoke(event: SQSEvent, remainingMs?: () => number): Promise<SQSBatchResponse>;
}

/** API Gateway, Lambda, SQS and S3 around the real handlers, on fauxqs. */
export interface Platform {
  env: Record<string, string>;
  queueName: string;
  aws: Awaited<ReturnType<typeof startFaux>>;
  call(call: Call): Promise<Answer>;
  container(): WorkerContainer;
  sweep(event?: { housekeep?: boolean }): Promise<void>;
  /** Bodies that wait in the queue. */
  queued(): string[];
  /** Loses every message that waits. */
  lose(): Promise<void>;
  /**
   * The event source: receives and invokes with batch size 1, at most eight at once, each in a container of its own, until
   * the queue is empty and all have returned. Returns how many invocations there were.
   */
  drain(): Promise<number>;
  /** Requests of functions to the store that their roles do not allow; empty without `roles`. */
  denied: string[];
  close(): Promise<void>;
}

export interface PlatformOptions {
  postgresEnv: Record<string, string>;
  db: Database;
  /** Path of a YAML catalogue. */
  catalog: string;
  env?: Record<string, string>;
  /**
   * Each function may do with the store what its role in infra/roles.yml allows. Not for a bundle, which has one
   * environment.
   */
  roles?: boolean;
  /** Functions of a bundle in place of the sources' own. They are one container: one invocation at a time. */
  load?(env: Record<string, string>): Promise<typeof Functions>;
}

/** The endpoints that API Gateway has routes for. */
const DEPLOYED = INFERENCE_ENDPOINTS.filter(({ lambda }) => lambda !== null);
/** The functions behind API Gateway. */
type ApiFunction = Exclude<keyof typeof Functions, 'worker' | 'sweep'>;
const API_FUNCTIONS = new Set(DEPLOYED.map(({ lambda }) => lambda as ApiFunction));

const AT_ONCE = 8;
const TIMEOUT_MS = 900_000;

/** Starts it, with the catalogue applied as a deployment does. */
export async function startPlatform({
  postgresEnv,
  db,
  catalog,
  env: more = {},
  roles = false,
  load,
}: PlatformOptions): Promise<Platform> {
  Object.assign(process.env, TEST_AWS_ENV); // the SDK's own credentials chain reads nothing else
  const aws = await startFaux();
  const name = `q-${randomUUID()}`;
  await createBucket(aws.endpoint, name);
  const { queueUrl } = aws.faux.createQueue(name);
  const env = {
    ...TEST_AWS_ENV,
    AWS_ENDPOINT_URL: aws.endpoint,
    ...postgresEnv,
    RELAY_PAYLOAD_STORE: 's3',
    RELAY_S3_BUCKET: name,
    RELAY_QUEUE: 'sqs',
    RELAY_SQS_QUEUE_URL: queueUrl,
    RELAY_LOG_LEVEL: 'silent',
    RELAY_BATCH_FLUSH_MS: '10',
    ...more,
  };
  await applyCatalog(db, await readCatalog([catalog]), { env, secretBox: null });
  const bundle = await load?.(env);
  const apps: LambdaApp[] = [];
  const keep = (app: LambdaApp) => {
    apps.push(app);
    return app;
  };
  const denied: string[] = [];
  const guards: Guard[] = [];
  const envOf = async (name: keyof typeof Functions) => {
    if (!roles) return env;
    const guard = await startGuard(name, { endpoint: aws.endpoint, bucket: env.RELAY_S3_BUCKET, denied });
    guards.push(guard);
    return { ...env, AWS_ENDPOINT_URL: guard.endpoint };
  };
  // Each has an app of its own.
  const own = {} as Record<ApiFunction, LambdaHandler>;
  for (const name of API_FUNCTIONS) own[name] = onLambda((app) => apiFunction(name, keep(app)), await envOf(name));
  const workerEnv = await envOf('worker');
  const bound = DEPLOYED.map(({ method, pattern, lambda }) => {
    const name = lambda as ApiFunction;
    return { method, pattern, run: bundle?.[name] ?? own[name] };
  });
  const find = createMatcher(bound);
  const sqs = new SQSClient({ ...TEST_CLIENT, endpoint: aws.endpoint, useQueueUrlAsEndpoint: false });
  const runSweep = onLambda<{ housekeep?: unknown }, void>((app) => sweep(keep(app)), await envOf('sweep'));

  const container = (): WorkerContainer => {
    let app: LambdaApp | null = null;
    const ownWorker = onLambda<SQSEvent, SQSBatchResponse>(
      (built) => {
        app = keep(built);
        return worker(built);
      },
      { ...workerEnv, AWS_LAMBDA_LOG_STREAM_NAME: randomUUID() },
    );
    const run = bundle === undefined ? ownWorker : (bundle.worker as typeof ownWorker);
    return {
      app: () => app,
      invoke: (event, remainingMs) => run(event, contextOf(remainingMs ?? countdown())),
    };
  };
  const free: WorkerContainer[] = [];
  const atOnce = bundle === undefined ? AT_ONCE : 1;
  const remove = ({ ReceiptHandle }: Message) =>
    sqs.send(new DeleteMessageCommand({ QueueUrl: queueUrl, ReceiptHandle }));
  const receive = async (): Promise<Message | null> => {
    const { Messages } = await sqs.send(
      new ReceiveMessageCommand({ QueueUrl: queueUrl, MaxNumberOfMessages: 1, WaitTimeSeconds: 0 }),
    );
    return Messages?.[0] ?? null;
  };

  return {
    env,
    queueName: name,
    aws,
    call: (call) => asEvent(find, call),
    container,
    sweep: (event = {}) => (bundle?.sweep ?? runSweep)(event, contextOf(countdown())),
    queued: () => aws.faux.inspectQueue(name)!.messages.ready.map(({ body }) => body),
    async lose() {
      for (let message = await receive(); message !== null; message = await receive()) await remove(message);
    },
    async drain() {
      let invocations = 0;
      const running = new Set<Promise<void>>();
      for (;;) {
        const message = running.size < atOnce ? await receive() : null;
        if (message === null) {
          if (running.size === 0) return invocations;
          await Promise.race(running);
          continue;
        }
        invocations++;
        const one = free.pop() ?? container();
        const done = one.invoke(sqsEventOf(message)).then(async ({ batchItemFailures }) => {
          if (batchItemFailures.length === 0) {
            await remove(message);
          }
          free.push(one);
          running.delete(done);
        });
        running.add(done);
      }
    },
    denied,
    async close() {
      for (const app of apps) await app.close();
      for (const guard of guards) await guard.stop();
      sqs.destroy();
      await aws.stop();
    },
  };
}

/** An invocation's remaining time, falling from the function's time-out. */
export function countdown(timeoutMs = TIMEOUT_MS): () => number {
  const start = performance.now();
  return () => timeoutMs - (performance.now() - start);
}

/** The event of one wake-up. */
export function wakeEvent(body = '{"kind":"work"}'): SQSEvent {
  return sqsEventOf({ MessageId: randomUUID(), Body: body });
}

function contextOf(getRemainingTimeInMillis: () => number): Context {
  return { getRemainingTimeInMillis, awsRequestId: randomUUID() } as Context;
}

function sqsEventOf(message: Message): SQSEvent {
  return {
    Records: [
      {
        messageId: message.MessageId ?? '',
        receiptHandle: message.ReceiptHandle ?? '',
        body: message.Body ?? '',
        attributes: {
          ApproximateReceiveCount: '1',
          SentTimestamp: '0',
          SenderId: '',
          ApproximateFirstReceiveTimestamp: '0',
        },
        messageAttributes: {},
        md5OfBody: '',
        eventSource: 'aws:sqs',
        eventSourceARN: '',
        awsRegion: 'us-east-1',
      },
    ],
  };
}
