import { type Clock, sleep } from '../../base/clock.ts';
import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { listUncompacted } from '../../batch/results/compact.sql.ts';
import { purgeIdempotencyKeys } from '../../batch/submit/record.sql.ts';
import { purgeUploads } from '../../batch/submit/uploads.sql.ts';
import type { Database } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import type { Heartbeat } from '../lease/lease.sql.ts';
import { type RescueDeps, rescueSilent } from '../lease/rescue.ts';
import { deleteOrphans } from './orphans.ts';
import { deleteExpiredBatches, expireItems, maintainUsagePartitions } from './sweep.sql.ts';

const HOUSEKEEPING_MS = 3_600_000;
const COMPACT_AT_ONCE = 50;

export interface SweepDeps {
  db: Database;
  store: PayloadStore;
  clock: Clock;
  log: Log;
  rescue: RescueDeps;
  retentionDays: number;
  usageRetentionDays: number;
  /** Id of this replica's worker; it never rescues itself. */
  selfId(): string | null;
  /** False while this replica cannot tell a lost worker from its own lost connection. */
  mayRescue(): boolean;
  compact(batchIds: readonly string[]): Promise<void>;
  /** Batches that are not to be tried again yet: many of them must not hide the others. */
  paused(): string[];
  /** Looks for batches of the OpenAI surface that wait for their validation. */
  validate(): Promise<void>;
  /** Items became available. */
  wake(): void;
  /** Further purges of other parts (limits, tokens). */
  purge(): Promise<void>;
}

export interface Sweeper {
  /** Does what the heartbeat found due. Single flight; a fault is logged and met again with the next heartbeat. */
  onHeartbeat(heartbeat: Heartbeat): Promise<void>;
  /**
   * The rare work: retention, orphans, partitions, purges. Also run on a timer until stopped. False when a step failed,
   * which is logged and keeps none of the others from running.
   */
  housekeep(): Promise<boolean>;
  stop(): Promise<void>;
}

/** The fall-back for everything that events start: rescues, expires, compacts, cleans. Every step guards itself in SQL. */
export function createSweeper(deps: SweepDeps): Sweeper {
  const stopping = new AbortController();
  let sweeping: Promise<void> | null = null;

  const step = async (name: string, work: () => Promise<unknown>): Promise<boolean> => {
    if (stopping.signal.aborted) return false;
    try {
      await work();
      return true;
    } catch (error) {
      deps.log.warn({ err: reasonOf(error), step: name }, 'sweep step failed, it is tried again later');
      return false;
    }
  };

  const rescue = async () => {
    const self = deps.selfId();
    if (self === null || !deps.mayRescue()) return;
    const { items, finished } = await rescueSilent(deps.rescue, self);
    if (items > 0) deps.wake();
    void deps.compact(finished);
  };

  const sweep = async (heartbeat: Heartbeat): Promise<void> => {
    if (heartbeat.workDue) deps.wake();
    if (heartbeat.rescueDue) await step('rescue', rescue);
    if (heartbeat.expiryDue)
      await step('expire', async () => void deps.compact(await expireItems(deps.db, deps.rescue.instance)));
    if (heartbeat.validationDue) await step('validate', deps.validate);
    if (heartbeat.compactionDue) {
      await step(
        'compact',
        async () => void deps.compact(await listUncompacted(deps.db, COMPACT_AT_ONCE, deps.paused())),
      );
    }
  };

  const housekeep = async (): Promise<boolean> => {
    const done = [
      await step('idempotency keys', () => purgeIdempotencyKeys(deps.db)),
      await step('uploads', () => purgeUploads(deps.db)),
      await step('usage partitions', () => maintainUsagePartitions(deps.db, deps.usageRetentionDays)),
      await step('retention', async () => {
        if (deps.retentionDays === 0) return;
        while (!stopping.signal.aborted && (await deleteExpiredBatches(deps.db, deps.retentionDays)) > 0);
      }),
      await step('purge', deps.purge),
      await step('orphans', () => deleteOrphans(deps.db, deps.store, deps.clock.now())),
    ];
    return done.every((ok) => ok);
  };

  const timed = async () => {
    // Replicas that start together do not sweep together.
    await sleep(60_000 * (1 + Math.random()), stopping.signal);
    while (!stopping.signal.aborted) {
      await housekeep();
      await sleep(HOUSEKEEPING_MS, stopping.signal);
    }
  };
  const done = timed();

  return {
    onHeartbeat(heartbeat) {
      sweeping ??= sweep(heartbeat).finally(() => {
        sweeping = null;
      });
      return sweeping;
    },
    housekeep,
    async stop() {
      stopping.abort();
      await Promise.all([sweeping, done]);
    },
  };
}
