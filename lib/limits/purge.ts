import type { Db } from '../db/database.ts';
import { deleteIdleBuckets, deleteOrphanedConcurrency } from './limits.sql.ts';

/**
 * The sweep's part of the limits. Deletes concurrency rows whose claim is over, which only a fault leaves behind (they
 * would count until their hold ends), then buckets that a fresh row would equal: idle for two windows. Gives how many.
 */
export async function purgeLimits(db: Db): Promise<{ concurrency: number; buckets: number }> {
  return { concurrency: await deleteOrphanedConcurrency(db), buckets: await deleteIdleBuckets(db) };
}
