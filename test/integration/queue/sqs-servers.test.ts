import { randomUUID } from 'node:crypto';
import {
  CreateQueueCommand,
  GetQueueAttributesCommand,
  type Message,
  ReceiveMessageCommand,
  SQSClient,
} from '@aws-sdk/client-sqs';
import type { SQSEvent } from 'aws-lambda';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { parseWake } from '../../../lib/queue/queue.ts';
import { createSqsPoller, createSqsQueue, type SqsOptions, type SqsQueue } from '../../../lib/queue/sqs.ts';
import { type AwsServer, hasMoto, startFaux, startMoto, TEST_CLIENT } from '../../support/aws.ts';
import { hasDocker, LOCALSTACK_HOOK_MS, startLocalStack } from '../../support/localstack.ts';

/** The rules for every SQS-compatible server; sqs.test.ts has the faults and the looks inside, on fauxqs alone. */
const SERVERS: [name: string, here: boolean, start: () => Promise<AwsServer>][] = [
  ['SQS (fauxqs)', true, startFaux],
  ['SQS (moto_server, when it is on the PATH)', hasMoto(), startMoto],
  ['SQS (LocalStack, when Docker answers)', await hasDocker(), startLocalStack],
];

for (const [name, here, start] of SERVERS) {
  describe.skipIf(!here)(`wake-ups on ${name}`, () => {
    let server: AwsServer;
    let sqs: SQSClient;
    let options: SqsOptions;
    let queue: SqsQueue;
    beforeAll(async () => {
      server = await start();
      sqs = new SQSClient({ ...TEST_CLIENT, endpoint: server.endpoint, useQueueUrlAsEndpoint: false });
    }, LOCALSTACK_HOOK_MS);
    afterAll(async () => {
      sqs?.destroy();
      await server?.stop();
    });
    beforeEach(async ({ onTestFinished }) => {
      options = { queueUrl: await makeQueue(), endpoint: server.endpoint, client: TEST_CLIENT };
      queue = createSqsQueue(options);
      onTestFinished(() => queue.close());
    });

    const makeQueue = async (Attributes: Record<string, string> = {}) => {
      const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: `relay-${randomUUID()}`, Attributes }));
      return QueueUrl!;
    };
    const receive = async (QueueUrl = options.queueUrl): Promise<Message[]> => {
      const command = new ReceiveMessageCommand({
        QueueUrl,
        MaxNumberOfMessages: 10,
        WaitTimeSeconds: 1,
        VisibilityTimeout: 5400,
      });
      return (await sqs.send(command)).Messages ?? [];
    };
    /** Messages in the queue: those to be had, and those that somebody has. */
    const counts = async (): Promise<[ready: number, taken: number]> => {
      const { Attributes } = await sqs.send(
        new GetQueueAttributesCommand({ QueueUrl: options.queueUrl, AttributeNames: ['All'] }),
      );
      return [
        Number(Attributes?.ApproximateNumberOfMessages),
        Number(Attributes?.ApproximateNumberOfMessagesNotVisible),
      ];
    };
    const eventually = async (holds: () => boolean | Promise<boolean>) => {
      while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 20));
    };

    test('a wake-up is sent once for each item, and at most eight times', async () => {
      await queue.send({ kind: 'work' }, 5);
      expect(await counts()).toEqual([5, 0]);
      await queue.send({ kind: 'work' }, 50_000);
      expect(await counts()).toEqual([13, 0]);
      const first = await receive();
      expect(first.map(({ Body }) => parseWake(Body ?? ''))).toContainEqual({ kind: 'work' });
    });

    test('the poller waits for a message, hands it on as an SQS event, and deletes it', async ({ onTestFinished }) => {
      const events: SQSEvent[] = [];
      const poller = createSqsPoller({
        ...options,
        log: createLog('silent'),
        async handle(event) {
          events.push(event);
          return { batchItemFailures: [] };
        },
      });
      onTestFinished(() => poller.stop());
      await queue.send({ kind: 'work' }, 3);
      const records = () => events.flatMap((event) => event.Records);
      await eventually(() => records().length >= 3);
      await eventually(async () => (await counts()).join() === '0,0');
      expect(records()).toHaveLength(3);
      expect(records()[0]).toMatchObject({ eventSource: 'aws:sqs', body: '{"kind":"work"}' });
      expect(records()[0]!.attributes.ApproximateReceiveCount).toBe('1');
    });

    test('of a batch only those messages stay that the handler names as failed', async () => {
      let bad = '';
      const poller = createSqsPoller({
        ...options,
        log: createLog('silent'),
        async handle(event) {
          bad ||= event.Records[0]!.messageId;
          const failed = event.Records.filter(({ messageId }) => messageId === bad);
          return { batchItemFailures: failed.map(({ messageId }) => ({ itemIdentifier: messageId })) };
        },
      });
      await queue.send({ kind: 'work' }, 4);
      await eventually(async () => (await counts()).join() === '0,1');
      await poller.stop();
      expect(bad).not.toBe('');
    });

    test('a message that was taken for long comes back when it is told to, and is counted', async () => {
      await queue.send({ kind: 'work' });
      const [message] = await receive();
      expect(await counts()).toEqual([0, 1]);
      await queue.comeBack(message!.ReceiptHandle!, 0);
      expect(await counts()).toEqual([1, 0]);
    });

    test('a message that failed as often as the queue allows goes to the dead-letter queue', async () => {
      const dead = await makeQueue();
      const { Attributes } = await sqs.send(
        new GetQueueAttributesCommand({ QueueUrl: dead, AttributeNames: ['QueueArn'] }),
      );
      const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: Attributes!.QueueArn, maxReceiveCount: 2 });
      options = { ...options, queueUrl: await makeQueue({ RedrivePolicy }) };
      const failing = createSqsQueue(options);
      await failing.send({ kind: 'work' });
      for (let i = 0; i < 2; i++) {
        const [message] = await receive();
        await failing.comeBack(message!.ReceiptHandle!, 0);
      }
      failing.close();
      expect(await receive()).toEqual([]);
      expect((await receive(dead)).map(({ Body }) => Body)).toEqual(['{"kind":"work"}']);
    });

    test('a queue that is not there is an error of the send', async () => {
      const gone = createSqsQueue({ ...options, queueUrl: `${options.queueUrl}-gone` });
      await expect(gone.send({ kind: 'work' })).rejects.toThrow();
      gone.close();
    });
  });
}
