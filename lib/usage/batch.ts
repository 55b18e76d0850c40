import type { Db } from '../db/database.ts';
import type { JsonInteger } from './json-integer.ts';
import { costOf, tokenMap } from './sums.ts';
import { sumBatch } from './usage.sql.ts';

/** Sums over a batch's usage events, as `GET /v1/batches/{id}?usage=true` shows them. */
export interface BatchUsage {
  tokens: Record<string, JsonInteger>;
  /** Nano-USD; null when something was sent and none of it has a price. */
  cost_nanos: JsonInteger | null;
  /** Items that reached an upstream and have no cost. */
  unpriced: number;
}

/** Adds up the events of a batch that are there so far; one without events has spent nothing. */
export async function batchUsage(db: Db, batchId: string): Promise<BatchUsage> {
  const sums = await sumBatch(db, batchId);
  return { tokens: tokenMap(sums), cost_nanos: costOf(sums), unpriced: sums.unpriced };
}
