import type { Database, Db } from '../db/database.ts';
import type { Meter } from '../model/catalog.ts';
import type { TokenCounts } from '../model/usage-event.ts';
import { bucketTable, type ItemClaim, itemColumns, retrying } from './columns.ts';
import { chargeBuckets, deleteConcurrency, refundBuckets } from './limits.sql.ts';
import type { BucketRule } from './rules.ts';

/** The tokens of one recorded outcome and the rules that its item was reserved under. */
export interface Charge {
  rules: readonly BucketRule[];
  tokens: TokenCounts;
}

/** A reservation that no upstream call followed; `atUs` is from its verdict. */
export interface Refund extends ItemClaim {
  rules: readonly BucketRule[];
  atUs: number;
}

/**
 * Returns how much an item counts in a token meter ("Reservation, charge and refund" in docs/spec/gateway-rules.md).
 * `tokens` is input, cache_read, cache_creation and output, each once; both halves of a split cache_creation belong to
 * it. 0 for `requests` and `concurrency`.
 *
 * @internal Exported for its tests.
 */
export function meteredTokens(meter: Meter, tokens: TokenCounts): number {
  const created = (tokens.cache_creation ?? 0) + (tokens.cache_creation_5m ?? 0) + (tokens.cache_creation_1h ?? 0);
  const [input, output, read] = [tokens.input ?? 0, tokens.output ?? 0, tokens.cache_read ?? 0];
  switch (meter) {
    case 'tokens':
      return input + read + created + output;
    case 'tokens.input':
      return input;
    case 'tokens.output':
      return output;
    case 'tokens.cache_read':
      return read;
    case 'tokens.cache_creation':
      return created;
    case 'tokens.reasoning':
      return tokens.reasoning ?? 0;
    default:
      return 0;
  }
}

/**
 * Charges token meters for the outcomes that a group commit recorded: one statement, into the windows that are current
 * now. Sends nothing if no rule has a token meter. Call it after the commit, outside its transaction: a charge locks
 * buckets and does not wait for the disk. Pass only outcomes that were recorded.
 */
export async function charge(db: Database, charges: readonly Charge[]): Promise<void> {
  const counts = new Map<string, number>();
  const rules: BucketRule[] = [];
  for (const { rules: applied, tokens } of charges) {
    for (const rule of applied) {
      const count = meteredTokens(rule.meter, tokens);
      if (count === 0) continue;
      const before = counts.get(rule.bucketId);
      if (before === undefined) rules.push(rule);
      counts.set(rule.bucketId, (before ?? 0) + count);
    }
  }
  if (rules.length === 0) return;
  const { columns } = bucketTable(rules);
  const byBucket = columns.ids.map((id) => counts.get(id)!);
  await retrying(() => chargeBuckets(db, columns, byBucket));
}

/**
 * Undoes reservations of items that made no upstream call: `requests` of every strategy, and concurrency rows. A window
 * that has moved on has nothing to refund, and a count never falls below zero. Of a level it refunds only the part that
 * cannot have drained yet. Pass each reservation at most once. Sends nothing for refunds without such rules.
 */
export async function refund(db: Database, refunds: readonly Refund[]): Promise<void> {
  const rules = refunds.flatMap((item) => item.rules.filter((rule) => rule.meter === 'requests'));
  if (rules.length > 0) {
    const table = bucketTable(rules);
    const columns = refundColumns(table.positions, refunds);
    await retrying(() => refundBuckets(db, table.columns, columns));
  }
  const held = refunds.flatMap((item) =>
    item.rules.filter((rule) => rule.meter === 'concurrency').map((rule) => ({ item, bucketId: rule.bucketId })),
  );
  if (held.length === 0) return;
  const buckets = held.map(({ bucketId }) => bucketId);
  await deleteConcurrency(db, itemColumns(held.map(({ item }) => item)), buckets);
}

/**
 * Frees the concurrency of claims that ended by release, rescue or cancel; the group commit does it in its own
 * statement. Runs in the transaction that ends the claim and takes no bucket lock. Returns how many rows it deleted.
 */
export async function releaseConcurrency(db: Db, items: readonly ItemClaim[]): Promise<number> {
  return items.length === 0 ? 0 : deleteConcurrency(db, itemColumns(items));
}

/** Refunds of one claim share bucket and instant, so they are sent as one. */
function refundColumns(positions: ReadonlyMap<string, number>, refunds: readonly Refund[]) {
  const groups = new Map<string, { bucket: number; atUs: number; count: number }>();
  for (const { rules, atUs } of refunds) {
    for (const rule of rules) {
      if (rule.meter !== 'requests') continue;
      const bucket = positions.get(rule.bucketId)!;
      const key = `${bucket}/${atUs}`;
      const group = groups.get(key);
      if (group) group.count++;
      else groups.set(key, { bucket, atUs, count: 1 });
    }
  }
  const all = [...groups.values()];
  return {
    buckets: all.map((group) => group.bucket),
    atsUs: all.map((group) => group.atUs),
    counts: all.map((group) => group.count),
  };
}
