import type { Db } from '../db/database.ts';
import { deleteIdleBuckets, deleteOrphanedConcurrency } from './limits.sql.ts';

/**
 * The sweep's part of the limits; returns how many rows it deleted. First concurrency rows whose claim has ended: only
 * a fault leaves them behind, and they count until their hold ends. Then buckets that equal a fresh row: idle for two
 * windows.
 */
export async function purgeLimits(db: Db): Promise<{ concurrency: number; buckets: number }> {
  return { concurrency: await deleteOrphanedConcurrency(db), buckets: await deleteIdleBuckets(db) };
}
