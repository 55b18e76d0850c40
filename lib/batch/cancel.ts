import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Database } from '../db/database.ts';
import type { WakeQueue } from '../queue/queue.ts';
import { cancelBatchRow } from './cancel.sql.ts';

export interface CancelDeps {
  db: Database;
  queue: WakeQueue;
  log: Log;
  instance: string;
  /** Ends what this replica's own worker holds of the batch. */
  abortHere(batchId: string): void;
}

/**
 * Cancels a batch: Status, its available items and their usage events in one transaction. Running items are aborted on
 * every replica (here at once, elsewhere by a notification, or with the next heartbeat should that be lost).
 * Idempotent; a finished batch keeps its results. Returns false when the owner has no such batch on this surface.
 */
export async function cancelBatch(deps: CancelDeps, owner: string, surface: string, id: string): Promise<boolean> {
  const { instance } = deps;
  const found = await deps.db.transaction((tx) => cancelBatchRow(tx, { id, owner, surface, instance }));
  if (!found) return false;
  await announceCancel(deps, id);
  return true;
}

/** After the commit of a cancel: ends what runs of the batch, here and on the other replicas. */
export async function announceCancel(deps: Pick<CancelDeps, 'abortHere' | 'queue' | 'log'>, id: string): Promise<void> {
  deps.abortHere(id);
  try {
    await deps.queue.send({ kind: 'cancel', batchId: id });
  } catch (error) {
    deps.log.warn({ err: reasonOf(error), batch: id }, 'other replicas learn of the cancel with their next beat');
  }
}
