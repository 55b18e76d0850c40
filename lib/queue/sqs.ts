import {
  ChangeMessageVisibilityCommand,
  DeleteMessageBatchCommand,
  type Message,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SQSClient,
  type SQSClientConfig,
} from '@aws-sdk/client-sqs';
import type { SQSBatchResponse, SQSEvent, SQSRecord } from 'aws-lambda';
import { sleep } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import { type WakeQueue, wakeBody } from './queue.ts';

export interface SqsOptions {
  /** Exactly as SQS, or the server that stands in for it, returns it. */
  queueUrl: string;
  /** An SQS-compatible server; null: AWS. */
  endpoint: string | null;
  /** Settings that replace those of the SDK's environment and defaults: region, credentials. */
  client?: SQSClientConfig;
}

/** As many as workers run at once on AWS (reserved concurrency): one message starts one of them. */
const MAX_WAKES = 8;
/** A submit waits no longer than this for its wake-up: the sweep sends it as well. */
const SEND_MS = 3000;
const LONG_POLL_SECONDS = 20;
const RECEIVE_AT_ONCE = 10;
/**
 * The handler only wakes the worker. A message whose receiver died is delivered again after this, not after the queue's
 * 90 min.
 */
const VISIBILITY_SECONDS = 30;
const BACK_OFF_MIN_MS = 200;
const BACK_OFF_MAX_MS = 20_000;

function createClient({ endpoint, client }: SqsOptions): SQSClient {
  return new SQSClient({
    maxAttempts: 3,
    retryMode: 'standard',
    requestHandler: {
      connectionTimeout: 2000,
      requestTimeout: (LONG_POLL_SECONDS + 10) * 1000,
      throwOnRequestTimeout: true,
    },
    // A stand-in returns queue URLs by its own name for itself, which need not be how it is reached from here.
    ...(endpoint === null ? {} : { endpoint, useQueueUrlAsEndpoint: false }),
    ...client,
  });
}

export interface SqsQueue extends WakeQueue {
  /** Makes a received message visible again after so many seconds, whatever the queue's visibility says. */
  comeBack(receiptHandle: string, seconds: number): Promise<void>;
  close(): void;
}

/**
 * Wake-ups as SQS messages: `count` of them, at most eight, in one call. They say only that there is work: state
 * is in Postgres. Throws when SQS does not take them within 3 s.
 */
export function createSqsQueue(options: SqsOptions): SqsQueue {
  const sqs = createClient(options);
  return {
    async send(wake, count = 1) {
      const MessageBody = wakeBody(wake);
      const Entries = Array.from({ length: Math.min(Math.max(count, 1), MAX_WAKES) }, (_, i) => ({
        Id: String(i),
        MessageBody,
      }));
      const { Failed } = await sqs.send(new SendMessageBatchCommand({ QueueUrl: options.queueUrl, Entries }), {
        abortSignal: AbortSignal.timeout(SEND_MS),
      });
      // One that got through is enough: a worker that leaves work behind wakes the next one.
      if (Failed?.length === Entries.length) throw new Error(`wake-ups not sent: ${Failed[0]?.Code}`);
    },
    async comeBack(ReceiptHandle, VisibilityTimeout) {
      const command = new ChangeMessageVisibilityCommand({
        QueueUrl: options.queueUrl,
        ReceiptHandle,
        VisibilityTimeout,
      });
      await sqs.send(command, { abortSignal: AbortSignal.timeout(SEND_MS) });
    },
    close: () => sqs.destroy(),
  };
}

export interface SqsPollerOptions extends SqsOptions {
  log: Log;
  /**
   * The worker's handler. Messages that it does not name as failed are deleted. Those that it names, or all if it
   * throws, are delivered again.
   */
  handle(event: SQSEvent): Promise<SQSBatchResponse>;
}

/**
 * The container's event source: receives with long polling, passes what came to the handler as a real SQS event, and
 * deletes it afterwards. While SQS cannot be reached it tries again with back-off up to 20 s; work continues meanwhile,
 * because every worker looks for it with its heartbeat too.
 */
export function createSqsPoller(options: SqsPollerOptions): { stop(): Promise<void> } {
  const { queueUrl, log } = options;
  const sqs = createClient(options);
  const stopping = new AbortController();

  const receive = async (): Promise<Message[]> => {
    const { Messages } = await sqs.send(
      new ReceiveMessageCommand({
        QueueUrl: queueUrl,
        MaxNumberOfMessages: RECEIVE_AT_ONCE,
        WaitTimeSeconds: LONG_POLL_SECONDS,
        VisibilityTimeout: VISIBILITY_SECONDS,
        MessageSystemAttributeNames: ['All'],
      }),
      { abortSignal: stopping.signal },
    );
    return Messages ?? [];
  };

  const handle = async (messages: readonly Message[]): Promise<void> => {
    const { batchItemFailures } = await options.handle({
      Records: messages.map((message) => record(message, queueUrl)),
    });
    const failed = new Set(batchItemFailures.map(({ itemIdentifier }) => itemIdentifier));
    const done = messages.filter(({ MessageId }) => !failed.has(MessageId ?? ''));
    if (done.length === 0) return;
    await sqs.send(
      new DeleteMessageBatchCommand({
        QueueUrl: queueUrl,
        Entries: done.map(({ ReceiptHandle }, i) => ({ Id: String(i), ReceiptHandle })),
      }),
    );
  };

  const run = async (): Promise<void> => {
    const away = (error: unknown) => log.warn({ err: reasonOf(error) }, 'SQS does not answer, trying again');
    while (!stopping.signal.aborted) {
      const received = await retryUntil(receive, {
        min: BACK_OFF_MIN_MS,
        max: BACK_OFF_MAX_MS,
        signal: stopping.signal,
        onFirst: away,
      });
      if (received.aborted) break;
      if (received.failures > 0) log.info('SQS answers again');
      if (received.value.length === 0) continue;
      // Messages that were not handled are delivered again, so nothing is tried again with them here.
      await handle(received.value).catch(async (error) => {
        away(error);
        await sleep(BACK_OFF_MIN_MS, stopping.signal);
      });
    }
  };
  const done = run();

  return {
    async stop() {
      stopping.abort();
      await done;
      sqs.destroy();
    },
  };
}

/** The record that Lambda's event source would make of a message. */
function record(message: Message, queueUrl: string): SQSRecord {
  const attributes = (message.Attributes ?? {}) as Partial<SQSRecord['attributes']>;
  const [account = '', name = ''] = queueUrl.split('/').slice(-2);
  return {
    messageId: message.MessageId ?? '',
    receiptHandle: message.ReceiptHandle ?? '',
    body: message.Body ?? '',
    attributes: {
      ...attributes,
      ApproximateReceiveCount: attributes.ApproximateReceiveCount ?? '1',
      SentTimestamp: attributes.SentTimestamp ?? '0',
      SenderId: attributes.SenderId ?? '',
      ApproximateFirstReceiveTimestamp: attributes.ApproximateFirstReceiveTimestamp ?? '0',
    },
    messageAttributes: {},
    md5OfBody: message.MD5OfBody ?? '',
    eventSource: 'aws:sqs',
    eventSourceARN: `arn:aws:sqs::${account}:${name}`,
    awsRegion: '',
  };
}
