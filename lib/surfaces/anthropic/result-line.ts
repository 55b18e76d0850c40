import { atOnce, type Steps } from '../../base/turns.ts';
import type { FinalItem } from '../../batch/results/final-items.ts';
import { onOneLine } from '../../json/one-line.ts';
import { type ItemError, itemError } from './item-error.ts';

const CUSTOM_ID = Buffer.from('{"custom_id":');
const SUCCEEDED = Buffer.from(',"result":{"type":"succeeded","message":');
const SUCCEEDED_END = Buffer.from('}}\n');
const CANCELED = Buffer.from(',"result":{"type":"canceled"}}\n');
const EXPIRED = Buffer.from(',"result":{"type":"expired"}}\n');
const ERRORED = Buffer.from(',"result":{"type":"errored","error":{"type":"error","error":{"type":"');
const MESSAGE = Buffer.from('","message":');
const REQUEST_ID = Buffer.from('},"request_id":');
const ERRORED_END = Buffer.from('}}}\n');

/** The final state of a request, in the words of this API. */
export type ResultType = 'succeeded' | 'errored' | 'canceled' | 'expired';

/** The text of items whose window closed before they had an answer (lib/worker/sweep/sweep.sql.ts). */
const EXPIRED_TEXT = 'batch item: expired';

/** How an outcome is reported. Throws for an item that is not final, or completed without an answer. */
export function resultType({ idx, state, error, body }: FinalItem): ResultType {
  if (state === 'completed' && body !== null) return 'succeeded';
  if (state === 'cancelled') return 'canceled';
  if (state === 'discarded') return error === EXPIRED_TEXT ? 'expired' : 'errored';
  throw new Error(`item ${idx} is ${state} without an answer`);
}

/**
 * One line of the results, in pieces, its LF included. `customId` is the JSON string; the upstream's answer is put in
 * unchanged, except line ends between its tokens (see `onOneLine`). `requestId` is for an error whose upstream named
 * none.
 */
export function* resultLineInSteps(
  customId: Uint8Array,
  outcome: FinalItem,
  type: ResultType,
  requestId: string,
): Steps<Uint8Array[]> {
  if (type === 'succeeded') return [CUSTOM_ID, customId, SUCCEEDED, yield* onOneLine(outcome.body!), SUCCEEDED_END];
  if (type === 'canceled') return [CUSTOM_ID, customId, CANCELED];
  if (type === 'expired') return [CUSTOM_ID, customId, EXPIRED];
  const error: ItemError = yield* itemError(outcome);
  return [
    CUSTOM_ID,
    customId,
    ERRORED,
    Buffer.from(error.type),
    MESSAGE,
    error.message,
    REQUEST_ID,
    error.requestId ?? Buffer.from(JSON.stringify(requestId)),
    ERRORED_END,
  ];
}

/** The same in one go, for an answer of few steps. */
export function resultLine(...line: Parameters<typeof resultLineInSteps>): Uint8Array[] {
  return atOnce(resultLineInSteps(...line));
}
