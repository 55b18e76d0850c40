import { type Clock, uuidv7 } from '../../base/clock.ts';
import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Db } from '../../db/database.ts';
import type { Periods } from '../periods.ts';
import {
  deleteWorker,
  type Heartbeat,
  insertWorker,
  type Standing,
  sendHeartbeat,
  type WorkerKind,
} from './lease.sql.ts';
import { beginTenure, isHeld, NO_TENURE, type Tenure } from './tenure.ts';

export interface LeaseDeps {
  db: Db;
  clock: Clock;
  log: Log;
  kind: WorkerKind;
  periods: Periods;
  /** Batches of which this worker holds items; empty when idle. */
  heldBatches(): string[];
  standing(): Standing;
  onHeartbeat(heartbeat: Heartbeat): void;
  /** No heartbeat got through for `giveUpMs`: others may have the items by now. Running calls are aborted. */
  onSilent(): void;
  /** A worker id holds a lease: items may be claimed in this tenure. A later one follows when it is lost. */
  onTenure(tenure: Tenure): void;
}

export interface Lease {
  /** Begins to take a lease and to renew it. Until then nothing is sent, and no event is emitted. */
  start(): void;
  /** The present worker id; null while no lease stands. */
  id(): string | null;
  /** The present tenure; one that has ended while no lease stands. */
  tenure(): Tenure;
  /** A lease stands and has been renewed within `stopClaimingMs`. */
  healthy(): boolean;
  /** A lease stands and has been renewed within `giveUpMs`: what it holds is still ours. */
  stands(): boolean;
  /** False for `noRescueMs` after this replica missed heartbeats itself. */
  mayRescue(): boolean;
  /** The database's clock, epoch ms, estimated from the last heartbeat. */
  dbNow(): number;
  /** Sends a heartbeat at once, out of turn; joins a heartbeat under way. */
  heartbeatNow(): Promise<void>;
  /** Stops sending; deletes the lease row when nothing is held any more, else leaves it for a rescue. */
  stop(clean: boolean): Promise<void>;
}

/**
 * A worker's lease, kept in database time. A worker frozen for longer than the lease finds its row gone when it wakes: its
 * tenure ends, with all that it holds, and the next one begins under a new id. The fence (worker id and claim number) keeps
 * late writes out.
 */
export function createLease(deps: LeaseDeps): Lease {
  const { periods } = deps;
  let { tenure, end } = { tenure: NO_TENURE, end: () => {} };
  /** The id of the tenure to come: an insert whose answer was lost is repeated with the same one. */
  let nextId = uuidv7(deps.clock.now());
  let lastHeartbeat = deps.clock.monotonic();
  let lastTick = lastHeartbeat;
  let gapEnded = Number.NEGATIVE_INFINITY;
  let silent = false;
  let stopped = false;
  let offset = 0;
  let sending: Promise<void> | null = null;

  const heartbeat = async (): Promise<void> => {
    const start = deps.clock.monotonic();
    try {
      if (!isHeld(tenure)) {
        await insertWorker(deps.db, nextId, deps.kind);
        ({ tenure, end } = beginTenure(nextId));
        lastHeartbeat = start;
        deps.onTenure(tenure);
      }
      const result = await sendHeartbeat(deps.db, tenure.workerId, deps.heldBatches(), deps.standing(), periods);
      if (start - lastHeartbeat > periods.stopClaimingMs) gapEnded = deps.clock.monotonic();
      lastHeartbeat = start;
      offset = result.nowMs - deps.clock.now();
      silent = false;
      if (result.alive) return deps.onHeartbeat(result);
      deps.log.warn({ worker: tenure.workerId }, 'lease lost, continuing under a new id');
      nextId = uuidv7(deps.clock.now());
      end();
      if (!stopped) await heartbeat();
    } catch (error) {
      deps.log.warn({ err: reasonOf(error) }, 'heartbeat failed');
    }
  };

  const heartbeatNow = (): Promise<void> => {
    sending ??= heartbeat().finally(() => {
      sending = null;
    });
    return sending;
  };

  const tick = () => {
    const now = deps.clock.monotonic();
    // A tick far too late means that this process itself stood still.
    const frozen = now - lastTick > periods.stopClaimingMs;
    lastTick = now;
    const age = now - lastHeartbeat;
    if (age > periods.giveUpMs && !silent && !frozen) {
      silent = true;
      deps.log.warn(`no heartbeat for ${periods.giveUpMs / 1000} s, giving up running calls`);
      deps.onSilent();
    }
    const busy = deps.heldBatches().length > 0;
    if (
      !isHeld(tenure) ||
      frozen ||
      age >= (busy ? periods.heartbeatBusyMs : periods.heartbeatIdleMs) - periods.tickMs / 2
    )
      void heartbeatNow();
  };

  let timer: NodeJS.Timeout | undefined;

  return {
    start() {
      timer = setInterval(tick, periods.tickMs);
      void heartbeatNow();
    },
    id: () => (isHeld(tenure) ? tenure.workerId : null),
    tenure: () => tenure,
    healthy: () => isHeld(tenure) && deps.clock.monotonic() - lastHeartbeat < periods.stopClaimingMs,
    stands: () => isHeld(tenure) && deps.clock.monotonic() - lastHeartbeat < periods.giveUpMs,
    mayRescue: () => deps.clock.monotonic() - gapEnded > periods.noRescueMs,
    dbNow: () => deps.clock.now() + offset,
    heartbeatNow,
    async stop(clean) {
      stopped = true;
      clearInterval(timer);
      await sending;
      const id = isHeld(tenure) ? tenure.workerId : null;
      end();
      if (clean && id !== null) await deleteWorker(deps.db, id).catch(() => {});
    },
  };
}
