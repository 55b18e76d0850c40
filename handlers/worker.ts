import type { SQSBatchResponse, SQSEvent } from 'aws-lambda';
import { parseWake, type Wake, wakeBody } from '../lib/queue/queue.ts';

export interface WorkerApp {
  /** Looks for work; what it finds is read from Postgres. */
  wake(wake: Wake): void;
}

/**
 * The worker. Takes an SQS-shaped event in both forms: the container's queue adapter makes one of each notification. A
 * message only says that there is something to look at, so a duplicate, late or unknown one does no harm and none is
 * ever given back.
 */
export function worker(app: WorkerApp): (event: SQSEvent) => Promise<SQSBatchResponse> {
  return async (event) => {
    for (const { body } of event.Records) app.wake(parseWake(body));
    return { batchItemFailures: [] };
  };
}

/** An SQS event with one message, as the container's queue adapter makes it. */
export function sqsEvent(wake: Wake): SQSEvent {
  const now = String(Date.now());
  return {
    Records: [
      {
        messageId: now,
        receiptHandle: '',
        body: wakeBody(wake),
        attributes: {
          ApproximateReceiveCount: '1',
          SentTimestamp: now,
          SenderId: '',
          ApproximateFirstReceiveTimestamp: now,
        },
        messageAttributes: {},
        md5OfBody: '',
        eventSource: 'aws:sqs',
        eventSourceARN: '',
        awsRegion: '',
      },
    ],
  };
}
