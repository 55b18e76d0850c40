import { plainArray } from '../db/arrays.ts';
import type { Database, Db } from '../db/database.ts';

/** Buckets by column, ascending by id, each once: the order in which they are locked. */
export interface BucketColumns {
  ids: readonly string[];
  meters: readonly string[];
  strategies: readonly string[];
  amounts: readonly number[];
  /** Microseconds; 0 for concurrency. */
  windowsUs: readonly number[];
}

/** Items by column. */
export interface ItemColumns {
  batchIds: readonly string[];
  idxs: readonly number[];
  claimNos: readonly number[];
}

export interface ReserveCall {
  buckets: BucketColumns;
  /** Positions in the buckets, from 1, set after set; and where each set ends. */
  members: readonly number[];
  setEnds: readonly number[];
  /** Requests in a row with the same set (from 1), and how many they are. */
  runSets: readonly number[];
  runLengths: readonly number[];
  /** Concurrency rows of those that pass: the bucket's position, the item, its run and its place in it, all from 1. */
  gauges: readonly number[];
  items: ItemColumns;
  itemRuns: readonly number[];
  itemPlaces: readonly number[];
  /** After it a concurrency row does not count any more. */
  holdUs: number;
}

export interface ReserveRow {
  /** Microseconds since the epoch: the instant of the decision. */
  at_us: number;
  /** By run: how many passed; the position (from 1) of the bucket that refused the rest, and its wait in seconds. */
  passed: number[];
  refused_by: number[];
  retry_s: number[];
}

export interface RefundColumns {
  /** Positions in the buckets, from 1; the instant of the reservation; how many requests. */
  buckets: readonly number[];
  atsUs: readonly number[];
  counts: readonly number[];
}

// Takes a Database and no transaction: these functions switch the wait for the disk off until the end of the
// transaction they run in, which must therefore be their own.

/** Decides for a group of requests, all rules of each at once (the function is described in migration 0005). */
export async function reserveBuckets(db: Database, call: ReserveCall): Promise<ReserveRow> {
  const { buckets, items } = call;
  const result = await db.query<ReserveRow>({
    name: 'limit_reserve',
    text: `select at_us, passed, refused_by, retry_s from limit_reserve(
      $1::uuid[], $2::text[], $3::text[], $4::double precision[], $5::bigint[], $6::integer[], $7::integer[],
      $8::integer[], $9::integer[], $10::integer[], $11::uuid[], $12::integer[], $13::integer[], $14::integer[],
      $15::integer[], $16::bigint)`,
    values: [
      plainArray(buckets.ids),
      plainArray(buckets.meters),
      plainArray(buckets.strategies),
      plainArray(buckets.amounts),
      plainArray(buckets.windowsUs),
      plainArray(call.members),
      plainArray(call.setEnds),
      plainArray(call.runSets),
      plainArray(call.runLengths),
      plainArray(call.gauges),
      plainArray(items.batchIds),
      plainArray(items.idxs),
      plainArray(items.claimNos),
      plainArray(call.itemRuns),
      plainArray(call.itemPlaces),
      call.holdUs,
    ],
  });
  return result.rows[0]!;
}

/** Adds `counts` (by bucket) to the windows that are current now. */
export async function chargeBuckets(db: Database, buckets: BucketColumns, counts: readonly number[]): Promise<void> {
  await db.query({
    name: 'limit_charge',
    text: 'select limit_charge($1::uuid[], $2::text[], $3::bigint[], $4::double precision[])',
    values: [buckets.ids, buckets.strategies, buckets.windowsUs, counts].map(plainArray),
  });
}

/** Returns requests to their buckets. */
export async function refundBuckets(db: Database, buckets: BucketColumns, refunds: RefundColumns): Promise<void> {
  await db.query({
    name: 'limit_refund',
    text: `select limit_refund($1::uuid[], $2::text[], $3::double precision[], $4::bigint[], $5::integer[],
      $6::bigint[], $7::integer[])`,
    values: [
      plainArray(buckets.ids),
      plainArray(buckets.strategies),
      plainArray(buckets.amounts),
      plainArray(buckets.windowsUs),
      plainArray(refunds.buckets),
      plainArray(refunds.atsUs),
      plainArray(refunds.counts),
    ],
  });
}

/**
 * Deletes the rows of these claims, in all buckets, or with `bucketIds` in the one beside each; returns how many there
 * were. Made for the transaction that ends the claims.
 */
export async function deleteConcurrency(
  db: Db,
  items: ItemColumns,
  bucketIds: readonly string[] | null = null,
): Promise<number> {
  const result = await db.query<{ n: number }>({
    name: 'limit_free',
    text: 'select limit_free($1::uuid[], $2::uuid[], $3::integer[], $4::integer[]) as n',
    values: [
      bucketIds && plainArray(bucketIds),
      plainArray(items.batchIds),
      plainArray(items.idxs),
      plainArray(items.claimNos),
    ],
  });
  return result.rows[0]!.n;
}

/**
 * Deletes rows whose claim is over: the item is not running, or runs under another claim, or does not exist any more.
 * Rows that a commit is deleting are left to it.
 */
export async function deleteOrphanedConcurrency(db: Db): Promise<number> {
  const result = await db.query({
    name: 'limit_concurrency_delete_orphaned',
    text: `with orphaned as (
        select c.batch_id, c.idx, c.claim_no, c.bucket_id from limit_concurrency c
        where not exists (select from batch_items i where i.batch_id = c.batch_id and i.idx = c.idx
          and i.state = 'running' and i.claim_no = c.claim_no)
        for update of c skip locked
      )
      delete from limit_concurrency c using orphaned o
      where c.batch_id = o.batch_id and c.idx = o.idx and c.claim_no = o.claim_no and c.bucket_id = o.bucket_id`,
    values: [],
  });
  return result.rowCount ?? 0;
}

/** Deletes buckets that say no more than a fresh one; those in use at this moment are left for the next time. */
export async function deleteIdleBuckets(db: Db): Promise<number> {
  const result = await db.query({
    name: 'limit_buckets_delete_idle',
    text: `with idle as (
        select b.id from limit_buckets b
        where b.idle_us < (extract(epoch from clock_timestamp()) * 1000000)::bigint
          and not exists (select from limit_concurrency c where c.bucket_id = b.id)
        for update of b skip locked
      )
      delete from limit_buckets b using idle where b.id = idle.id`,
    values: [],
  });
  return result.rowCount ?? 0;
}
