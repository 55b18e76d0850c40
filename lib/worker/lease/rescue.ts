import type { Log } from '../../base/log.ts';
import type { Database, Db } from '../../db/database.ts';
import { lockFormerWorkers, lockSilentWorkers, rescueItems } from './lease.sql.ts';

/**
 * After so many lost workers an item is discarded: it may be what kills them ("Lost workers" in
 * docs/spec/engine-guarantees.md).
 */
const MAX_LOSSES = 3;

export interface RescueDeps {
  db: Database;
  log: Log;
  instance: string;
  /** `discard`: an item whose worker was lost is never sent a second time. */
  onWorkerLoss: 'rerun' | 'discard';
  /** Silence after which a worker is lost (`Periods`). */
  leaseSeconds: number;
}

export interface Rescued {
  items: number;
  finished: string[];
}

/** Takes back the items of workers that are silent for longer than the lease. `selfId` is never among them. */
export function rescueSilent(deps: RescueDeps, selfId: string): Promise<Rescued> {
  return rescue(deps, (tx) => lockSilentWorkers(tx, selfId, deps.leaseSeconds));
}

/** Takes back, at once, the items of this instance's own former workers: the instance has started again. */
export function takeBackFormer(deps: RescueDeps, selfId: string): Promise<Rescued> {
  return rescue(deps, (tx) => lockFormerWorkers(tx, deps.instance, selfId));
}

async function rescue(deps: RescueDeps, lock: (tx: Db) => Promise<string[]>): Promise<Rescued> {
  const maxLosses = deps.onWorkerLoss === 'discard' ? 1 : MAX_LOSSES;
  return deps.db.transaction(async (tx) => {
    const workers = await lock(tx);
    if (workers.length === 0) return { items: 0, finished: [] };
    const { rescued, finished } = await rescueItems(tx, workers, deps.instance, maxLosses);
    deps.log[rescued > 0 ? 'warn' : 'info']({ workers, items: rescued }, 'items of lost workers taken back');
    return { items: rescued, finished };
  });
}
