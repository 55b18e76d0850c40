import { type Clock, uuidv7 } from '../../base/clock.ts';
import { reasonOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Db } from '../../db/database.ts';
import { deleteWorker, type Heartbeat, insertWorker, sendHeartbeat } from './lease.sql.ts';

const TICK_MS = 1000;
const HEARTBEAT_BUSY_MS = 5000;
const HEARTBEAT_IDLE_MS = 10_000;
/** Silence after which nothing new is claimed, and after which running calls are given up (design section 3). */
const STOP_CLAIMING_MS = 20_000;
const GIVE_UP_MS = 30_000;
/** A replica that was silent itself cannot tell a lost worker from a lost database: it rescues nobody for this long. */
const NO_RESCUE_AFTER_GAP_MS = 30_000;

export interface LeaseDeps {
  db: Db;
  clock: Clock;
  log: Log;
  instance: string;
  /** Batches of which this worker holds items; empty when idle. */
  heldBatches(): string[];
  onHeartbeat(heartbeat: Heartbeat): void;
  /** No heartbeat got through for 30 s: others may have the items by now. Running calls are aborted. */
  onSilent(): void;
  /** The lease was taken by a rescue: nothing held is ours any more. A new id follows. */
  onLost(): void;
  /** A (new) worker id holds a lease: items may be claimed under it. */
  onReady(workerId: string): void;
}

export interface Lease {
  /** The present worker id; null until the first lease stands. */
  id(): string | null;
  /** A lease stands and has been renewed within 20 s. */
  healthy(): boolean;
  /** A lease stands and has been renewed within 30 s: what it holds is still ours. */
  stands(): boolean;
  /** False for 30 s after this replica missed heartbeats itself. */
  mayRescue(): boolean;
  /** The database's clock, epoch ms, estimated from the last heartbeat. */
  dbNow(): number;
  /** Sends a heartbeat at once, out of turn; joins a heartbeat under way. */
  heartbeatNow(): Promise<void>;
  /** Stops sending; deletes the lease row when nothing is held any more, else leaves it for a rescue. */
  stop(clean: boolean): Promise<void>;
}

/**
 * A worker's lease, kept in database time. A worker frozen for longer than the lease finds its row gone when it wakes: it
 * drops what it holds and goes on under a new id; the fence (worker id and claim number) keeps its late writes out.
 */
export function createLease(deps: LeaseDeps): Lease {
  let workerId: string | null = null;
  let registered = false;
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
      if (!registered) {
        workerId ??= uuidv7(deps.clock.now());
        await insertWorker(deps.db, workerId, deps.instance);
        registered = true;
        lastHeartbeat = start;
        deps.onReady(workerId);
      }
      const result = await sendHeartbeat(deps.db, workerId!, deps.heldBatches());
      if (start - lastHeartbeat > STOP_CLAIMING_MS) gapEnded = deps.clock.monotonic();
      lastHeartbeat = start;
      offset = result.nowMs - deps.clock.now();
      silent = false;
      if (result.alive) return deps.onHeartbeat(result);
      deps.log.warn({ worker: workerId }, 'lease lost, going on under a new id');
      workerId = null;
      registered = false;
      deps.onLost();
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
    const frozen = now - lastTick > STOP_CLAIMING_MS;
    lastTick = now;
    const age = now - lastHeartbeat;
    if (age > GIVE_UP_MS && !silent && !frozen) {
      silent = true;
      deps.log.warn('no heartbeat for 30 s, giving up running calls');
      deps.onSilent();
    }
    const busy = deps.heldBatches().length > 0;
    if (!registered || frozen || age >= (busy ? HEARTBEAT_BUSY_MS : HEARTBEAT_IDLE_MS) - TICK_MS / 2)
      void heartbeatNow();
  };

  const timer = setInterval(tick, TICK_MS);
  void heartbeatNow();

  return {
    id: () => (registered ? workerId : null),
    healthy: () => registered && deps.clock.monotonic() - lastHeartbeat < STOP_CLAIMING_MS,
    stands: () => registered && deps.clock.monotonic() - lastHeartbeat < GIVE_UP_MS,
    mayRescue: () => deps.clock.monotonic() - gapEnded > NO_RESCUE_AFTER_GAP_MS,
    dbNow: () => deps.clock.now() + offset,
    heartbeatNow,
    async stop(clean) {
      stopped = true;
      clearInterval(timer);
      await sending;
      if (clean && registered && workerId !== null) await deleteWorker(deps.db, workerId).catch(() => {});
      registered = false;
    },
  };
}
