import { sleep } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import type { Db } from '../db/database.ts';
import { isDatabaseAway } from '../db/errors.ts';
import type { BatchContext, ClaimedItem } from '../model/batch.ts';
import { claimItems, readContexts, readOpenWork, releaseUnheld } from './claim.sql.ts';
import { planClaim } from './fair.ts';
import { isHeld, type Tenure } from './lease/tenure.ts';
import type { Periods } from './periods.ts';

const MAX_CONTEXTS = 10_000;
/** Pause before trying again when another replica held every batch that was wanted. */
const CONTENTION_MS = 5;

export interface Claimer {
  /**
   * Claims up to `want` items. `more`: work that is due is left, so ask again while there is room. `nextDueMs`: when
   * the next released item may run, null when none waits. Claims nothing in a tenure that ends meanwhile. Throws
   * database errors: nothing is claimed then, or it is rescued.
   */
  claim(tenure: Tenure, want: number): Promise<{ items: ClaimedItem[]; more: boolean; nextDueMs: number | null }>;
  /** Returns what the database says is this worker's but is not in `held`: the answer of its claim was lost. */
  releaseUnheld(tenure: Tenure, held: ReadonlyMap<string, ReadonlySet<number>>): Promise<void>;
  /** The batches of which the last claim left items because slots went to other batches. */
  passedOver(): readonly string[];
}

export interface ClaimerDeps {
  db: Db;
  log: Log;
  /** Pauses while the database cannot be reached. */
  retry: Periods['databaseRetry'];
  instance: string;
  random(): number;
  /** Loads a catalogue newer than the one in memory before an item that was claimed under it starts. */
  refreshCatalog(version: number): Promise<void>;
  catalogVersion(): number;
  observe(seconds: number): void;
}

/** Claims fairly: plans on one read of all open batches, then takes the items in one statement. */
export function createClaimer(deps: ClaimerDeps): Claimer {
  let contexts = new Map<string, BatchContext>();
  let passedOver: readonly string[] = [];

  const contextsOf = async (ids: ReadonlySet<string>, { signal }: Tenure): Promise<void> => {
    const missing = [...ids].filter((id) => !contexts.has(id));
    if (missing.length === 0) return;
    if (contexts.size > MAX_CONTEXTS) contexts = new Map();
    const wanted = [...(contexts.size === 0 ? ids : missing)];
    // The items are claimed already, and without their contexts nobody can run them, so this waits for the database. An
    // error that waiting cannot fix is thrown: the claim loop logs it and releases the items.
    const read = await retryUntil(() => readContexts(deps.db, wanted), {
      ...deps.retry,
      signal,
      isRetryable: isDatabaseAway,
      onFirst: (error) => deps.log.warn({ err: reasonOf(error) }, 'claim waits for the database'),
    });
    if (!read.aborted) for (const context of read.value) contexts.set(context.id, context);
  };

  return {
    passedOver: () => passedOver,
    async releaseUnheld({ workerId }, held) {
      const batchIds: string[] = [];
      const idxs: number[] = [];
      for (const [batchId, items] of held) {
        for (const idx of items) {
          batchIds.push(batchId);
          idxs.push(idx);
        }
      }
      await releaseUnheld(deps.db, workerId, deps.instance, batchIds, idxs);
    },
    async claim(tenure, want) {
      const start = performance.now();
      const work = await readOpenWork(deps.db);
      const plan = planClaim(work.batches, want);
      passedOver = plan.passedOver;
      if (plan.batchIds.length === 0) return { items: [], more: false, nextDueMs: work.nextDueMs };
      const { rows, catalogVersion } = await claimItems(deps.db, tenure.workerId, plan.batchIds, plan.counts, plan.due);
      deps.observe((performance.now() - start) / 1000);
      if (rows.length === 0) {
        await sleep(CONTENTION_MS * (1 + 3 * deps.random()));
        return { items: [], more: true, nextDueMs: work.nextDueMs };
      }
      await Promise.all([
        deps.refreshCatalog(catalogVersion),
        contextsOf(new Set(rows.map((row) => row.batchId)), tenure),
      ]);
      if (!isHeld(tenure)) return { items: [], more: false, nextDueMs: null };
      // Under an older catalogue a new key would look deleted: the items go back until the newer one can be read.
      if (deps.catalogVersion() < catalogVersion) throw new Error('the catalogue of the claim could not be loaded');
      const items = rows.flatMap((row): ClaimedItem[] => {
        const batch = contexts.get(row.batchId);
        return batch ? [{ batch, ...row }] : [];
      });
      return { items, more: true, nextDueMs: work.nextDueMs };
    },
  };
}
