import { publicIds } from '../../model/public-id.ts';
import type { MessageBatchRow } from './message-batches.sql.ts';

/** The public id of a batch, and the UUID in one: `msgbatch_01` and the 32 hex digits of its UUID. */
export const { of: messageBatchId, parse: parseMessageBatchId } = publicIds('msgbatch_01');

const WINDOW_MS = 86_400_000;

/** How many requests are in each state; they sum to the total. */
export interface RequestCounts {
  processing: number;
  succeeded: number;
  errored: number;
  canceled: number;
  expired: number;
}

/**
 * The object of the Anthropic API, every key always there ("Message batch object" in docs/spec/anthropic-surface.md).
 * Times are RFC 3339 or null.
 */
export interface MessageBatch {
  id: string;
  type: 'message_batch';
  processing_status: 'in_progress' | 'canceling' | 'ended';
  request_counts: RequestCounts;
  created_at: string;
  expires_at: string;
  ended_at: string | null;
  cancel_initiated_at: string | null;
  archived_at: null;
  results_url: string | null;
}

/**
 * Renders a batch. It has ended when its results are written, which is right after its last item: until then all of its
 * requests count as processing. `origin` is called only for one that has ended; the results URL is absolute, because
 * clients send their key to it as it is.
 */
export function messageBatch(row: MessageBatchRow, origin: () => string): MessageBatch {
  const id = messageBatchId(row.id);
  const ended = row.results_id !== null;
  // A cancel may come between the last item and the results.
  const endedAt = ended ? Math.max(row.completed_at!.getTime(), row.cancelled_at?.getTime() ?? 0) : null;
  return {
    id,
    type: 'message_batch',
    processing_status: ended ? 'ended' : row.cancelled_at === null ? 'in_progress' : 'canceling',
    request_counts: countsOf(row),
    created_at: row.created_at.toISOString(),
    expires_at: new Date(row.created_at.getTime() + WINDOW_MS).toISOString(),
    ended_at: endedAt === null ? null : new Date(endedAt).toISOString(),
    cancel_initiated_at: row.cancelled_at?.toISOString() ?? null,
    archived_at: null,
    results_url: ended ? `${origin()}/v1/messages/batches/${id}/results` : null,
  };
}

function countsOf(row: MessageBatchRow): RequestCounts {
  const counts = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 };
  if (row.results_id === null) return { ...counts, processing: row.total_items };
  const { completed = 0, discarded = 0, cancelled = 0, expired = 0 } = row.final_counts ?? {};
  return { ...counts, succeeded: completed, errored: discarded - expired, canceled: cancelled, expired };
}
