import { ReceiveMessageCommand, SQSClient } from '@aws-sdk/client-sqs';
import type { SQSEvent } from 'aws-lambda';
import type { FauxqsServer } from 'fauxqs';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { createLog } from '../../../lib/base/log.ts';
import { parseWake } from '../../../lib/queue/queue.ts';
import { createSqsPoller, createSqsQueue, type SqsOptions, type SqsPollerOptions } from '../../../lib/queue/sqs.ts';
import { startFaux, TEST_CLIENT } from '../../support/aws.ts';
import { type FaultProxy, startFaultProxy } from '../../support/fault-proxy.ts';

let server: Awaited<ReturnType<typeof startFaux>>;
let proxy: FaultProxy;
let options: SqsOptions;
let name = '';
const pollers: { stop(): Promise<void> }[] = [];

beforeAll(async () => {
  server = await startFaux();
  proxy = await startFaultProxy(server.endpoint);
});
afterAll(async () => {
  await proxy.stop();
  await server.stop();
});
beforeEach((context) => {
  name = `q-${context.task.id}`;
  const { queueUrl } = server.faux.createQueue(name);
  options = { queueUrl, endpoint: proxy.endpoint, client: TEST_CLIENT };
  proxy.decide = () => null;
  proxy.seen = [];
});
afterEach(async () => {
  for (const poller of pollers.splice(0)) await poller.stop();
});

function poll(handle: SqsPollerOptions['handle']): void {
  pollers.push(createSqsPoller({ ...options, log: createLog('silent'), handle }));
}

const queued = () => (server.faux as FauxqsServer).inspectQueue(name)!.messages;
const left = () => queued().ready.length + queued().inflight.length;
async function eventually(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 20));
}

test.each([
  [undefined, 1],
  [1, 1],
  [5, 5],
  [8, 8],
  [50_000, 8],
])('sends one wake-up for each of %s items, and at most eight', async (count, messages) => {
  const queue = createSqsQueue(options);
  await queue.send({ kind: 'work' }, count);
  queue.close();
  expect(queued().ready.map((message) => parseWake(message.body))).toEqual(
    Array.from({ length: messages }, () => ({ kind: 'work' })),
  );
  expect(proxy.seen).toHaveLength(1);
});

test('hands messages on as an SQS event and deletes them after the handler', async () => {
  const events: SQSEvent[] = [];
  let deletedTooEarly = false;
  poll(async (event) => {
    deletedTooEarly ||= left() === 0;
    events.push(event);
    return { batchItemFailures: [] };
  });
  const queue = createSqsQueue(options);
  await queue.send({ kind: 'work' }, 3);
  await eventually(() => events.flatMap((event) => event.Records).length >= 3 && left() === 0);
  queue.close();
  expect(deletedTooEarly).toBe(false);
  const record = events[0]!.Records[0]!;
  expect(record).toMatchObject({ eventSource: 'aws:sqs', body: '{"kind":"work"}' });
  expect(record.messageId).toMatch(/^[0-9a-f-]{36}$/);
  expect(record.attributes.ApproximateReceiveCount).toBe('1');
  expect(record.eventSourceARN).toContain(`:${name}`);
});

test('keeps the messages that the handler names as failed, and all when it throws', async () => {
  const queue = createSqsQueue(options);
  let throwing = false;
  let calls = 0;
  poll(async (event) => {
    calls++;
    if (throwing) throw new Error('no');
    return { batchItemFailures: event.Records.map(({ messageId }) => ({ itemIdentifier: messageId })) };
  });
  await queue.send({ kind: 'work' });
  await eventually(() => calls === 1);
  throwing = true;
  await queue.send({ kind: 'work' });
  await eventually(() => calls === 2);
  queue.close();
  await pollers.pop()!.stop();
  expect(left()).toBe(2);
  expect(proxy.seen.length).toBeGreaterThan(0);
});

test('polls again with back-off when SQS was away, and takes what came meanwhile', async () => {
  let received = 0;
  proxy.decide = () => 'reset';
  poll(async (event) => {
    received += event.Records.length;
    return { batchItemFailures: [] };
  });
  await eventually(() => proxy.seen.length >= 4);
  server.faux.sendMessage(name, 'anything at all');
  proxy.decide = () => null;
  await eventually(() => received === 1 && left() === 0);
});

test('makes a message come back when it is told to', async () => {
  const queue = createSqsQueue(options);
  const sqs = new SQSClient({ ...TEST_CLIENT, endpoint: proxy.endpoint, useQueueUrlAsEndpoint: false });
  await queue.send({ kind: 'work' });
  const { Messages } = await sqs.send(
    new ReceiveMessageCommand({ QueueUrl: options.queueUrl, VisibilityTimeout: 5400 }),
  );
  expect(queued().ready).toHaveLength(0);
  await queue.comeBack(Messages![0]!.ReceiptHandle!, 0);
  expect(queued().ready).toHaveLength(1);
  queue.close();
  sqs.destroy();
});

test('gives up a wake-up that SQS does not take, within its time', async () => {
  const queue = createSqsQueue(options);
  proxy.decide = () => ({ delayMs: 60_000 });
  await expect(queue.send({ kind: 'work' }, 4)).rejects.toThrow();
  proxy.decide = () => ({ status: 500, code: 'InternalFailure' });
  await expect(queue.send({ kind: 'work' }, 4)).rejects.toThrow();
  queue.close();
  expect(left()).toBe(0);
});

test('stops in the middle of a long poll', { timeout: 10_000 }, async () => {
  poll(async () => ({ batchItemFailures: [] }));
  await eventually(() => proxy.seen.length > 0);
  await pollers.pop()!.stop();
});
