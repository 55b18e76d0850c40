import { isRetryable } from '../db/errors.ts';
import type { BucketColumns, ItemColumns } from './limits.sql.ts';
import type { BucketRule } from './rules.ts';

const RETRIES = 5;

/** One claim of one item: concurrency rows belong to it. */
export interface ItemClaim {
  batchId: string;
  idx: number;
  claimNo: number;
}

/** Each bucket once, in the order of the ids, and where (from 1) each id stands in the columns. */
export interface BucketTable {
  rules: readonly BucketRule[];
  positions: ReadonlyMap<string, number>;
  columns: BucketColumns;
}

/** Rules that share a bucket become one (the first). Lower-case UUID texts sort as Postgres sorts UUIDs. */
export function bucketTable(rules: Iterable<BucketRule>): BucketTable {
  const byId = new Map<string, BucketRule>();
  for (const rule of rules) if (!byId.has(rule.bucketId)) byId.set(rule.bucketId, rule);
  const sorted = [...byId.values()].sort((a, b) => (a.bucketId < b.bucketId ? -1 : 1));
  return {
    rules: sorted,
    positions: new Map(sorted.map((rule, i) => [rule.bucketId, i + 1])),
    columns: {
      ids: sorted.map((rule) => rule.bucketId),
      meters: sorted.map((rule) => rule.meter),
      strategies: sorted.map((rule) => rule.strategy),
      amounts: sorted.map((rule) => rule.amount),
      windowsUs: sorted.map((rule) => Math.round(rule.window * 1_000_000)),
    },
  };
}

/** Returns item claims by column. */
export function itemColumns(items: readonly ItemClaim[]): ItemColumns {
  return {
    batchIds: items.map((item) => item.batchId),
    idxs: items.map((item) => item.idx),
    claimNos: items.map((item) => item.claimNo),
  };
}

/** Runs a call of one statement again after a deadlock or serialisation failure, which left nothing behind. */
export async function retrying<T>(call: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await call();
    } catch (error) {
      if (attempt >= RETRIES || !isRetryable(error)) throw error;
    }
  }
}
