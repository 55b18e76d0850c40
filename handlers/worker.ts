import type { Context, SQSBatchResponse, SQSEvent } from 'aws-lambda';
import { reasonOf } from '../lib/base/errors.ts';
import type { Log } from '../lib/base/log.ts';
import { parseWake, type Wake, wakeBody } from '../lib/queue/queue.ts';

export interface WorkerApp {
  log: Log;
  /**
   * Looks for work; what it finds is read from Postgres. In the container it returns at once. On Lambda, where no
   * work continues after a return, it works until there is nothing to do or `remainingMs` runs out.
   */
  wake(wake: Wake, remainingMs: () => number): void | Promise<void>;
  /** Its wake-up failed: the message should be tried again soon. Never rejects. */
  failed?(receiptHandle: string): Promise<void>;
}

/** Of Lambda's context, what the worker uses; the container's adapter has none. */
type Remaining = Pick<Context, 'getRemainingTimeInMillis'>;

/**
 * The worker. Takes an SQS event in both forms: the container's queue adapters make one of what they receive. A message
 * only says that there may be work, so a duplicate, late or unknown one does no harm. It is returned to the queue only when
 * the look itself failed: Postgres was unavailable.
 */
export function worker(app: WorkerApp): (event: SQSEvent, context?: Remaining) => Promise<SQSBatchResponse> {
  return async (event, context) => {
    const remainingMs = () => context?.getRemainingTimeInMillis() ?? Number.POSITIVE_INFINITY;
    const batchItemFailures: SQSBatchResponse['batchItemFailures'] = [];
    for (const { messageId, receiptHandle, body } of event.Records) {
      try {
        await app.wake(parseWake(body), remainingMs);
      } catch (error) {
        app.log.error({ err: reasonOf(error), message: messageId }, 'wake-up failed');
        batchItemFailures.push({ itemIdentifier: messageId });
        await app.failed?.(receiptHandle);
      }
    }
    return { batchItemFailures };
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
