import type { Db } from '../../db/database.ts';
import { listNewerMessageBatches, listOlderMessageBatches, type MessageBatchRow } from './message-batches.sql.ts';

/** A page, newest first; `hasMore` says whether there are more in the direction asked for. */
export interface MessageBatchPage {
  rows: MessageBatchRow[];
  hasMore: boolean;
}

/**
 * A page of an owner's batches: the newest ones, those after (older than) `after`, or the nearest ones before (newer than)
 * `before`. The order is that of the ids, which begin with the time. The batch of a cursor need not exist any more.
 */
export async function listMessageBatches(
  deps: { db: Db },
  page: { owner: string; after: string | null; before: string | null; limit: number },
): Promise<MessageBatchPage> {
  const { owner, after, before, limit } = page;
  const oneMore = limit + 1;
  const found =
    before === null
      ? await listOlderMessageBatches(deps.db, { owner, after, limit: oneMore })
      : await listNewerMessageBatches(deps.db, { owner, before, limit: oneMore });
  const rows = found.slice(0, limit);
  return { rows: before === null ? rows : rows.reverse(), hasMore: found.length > limit };
}
