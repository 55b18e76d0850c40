import type { Db } from '../db/database.ts';
import { createFileStore } from '../payloads/file-store.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import { createSpaceReserve } from '../payloads/space-reserve.ts';
import { createPostgresQueue } from '../queue/postgres.ts';
import type { WakeQueue } from '../queue/queue.ts';
import type { Config } from './config.ts';

export type Env = Readonly<Record<string, string | undefined>>;

/** The payload store that is configured. The SDK is loaded only where it is needed: it is most of a start's time. */
export async function openPayloads(config: Config, env: Env): Promise<PayloadStore> {
  if (config.payloadStore === 'file') {
    const { payloadDir, payloadReserveBytes } = config;
    return createFileStore(payloadDir, createSpaceReserve(payloadDir, payloadReserveBytes));
  }
  const { createS3Store } = await import('../payloads/s3-store.ts');
  return createS3Store({ bucket: config.s3Bucket!, prefix: config.s3Prefix, ...awsOf(env, 'S3') });
}

export interface Wakes extends WakeQueue {
  /** See SqsQueue; does nothing where wake-ups are no messages. */
  comeBack(receiptHandle: string, seconds: number): Promise<void>;
  close(): void;
}

/**
 * The wake-up queue that is configured. With SQS only `work` goes there, because a message reaches one receiver; a
 * cancel and a new catalogue concern all, and go by NOTIFY, where nobody listens with the next heartbeat.
 */
export async function openQueue(config: Config, env: Env, db: Db): Promise<Wakes> {
  const postgres = createPostgresQueue(db);
  if (config.queue === 'postgres') return { send: postgres.send, comeBack: async () => {}, close() {} };
  const { createSqsQueue } = await import('../queue/sqs.ts');
  const sqs = createSqsQueue({ queueUrl: config.sqsQueueUrl!, ...awsOf(env, 'SQS') });
  return {
    send: (wake, count) => (wake.kind === 'work' ? sqs.send(wake, count) : postgres.send(wake)),
    comeBack: sqs.comeBack,
    close: sqs.close,
  };
}

/** Where AWS, or what stands in for it, is: read as the SDK does, so that the forms that depend on it can be chosen. */
export function awsOf(env: Env, service: 'S3' | 'SQS'): { endpoint: string | null; client: { region?: string } } {
  const endpoint = env[`AWS_ENDPOINT_URL_${service}`] || env.AWS_ENDPOINT_URL || null;
  const region = env.AWS_REGION || env.AWS_DEFAULT_REGION || (endpoint === null ? undefined : 'us-east-1');
  return { endpoint, client: region === undefined ? {} : { region } };
}
