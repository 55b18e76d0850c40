import type { UpstreamClient } from '../upstream/call-result.ts';
import { takeBackFormer } from '../worker/lease/rescue.ts';
import type { Sweeper } from '../worker/sweep/sweep.ts';
import type { Worker, WorkerDeps } from '../worker/worker.ts';
import type { SharedParts } from './shared-parts.ts';

/**
 * This replica's own worker and its sweeper.
 *
 *     idle ──start──► running ──stop──► ended
 *
 * A worker can only start when the database answers, and parts that are built before that call it. So this exists first:
 * while it is idle, calls do nothing, because a worker that starts looks for work by itself.
 */
export interface LocalWorker {
  /** There may be work. */
  wake(): void;
  cancelBatch(batchId: string): void;
  /** Renews the lease at once: the database could not be reached for a moment. */
  heartbeatNow(): void;
  /** The database's clock, epoch ms; null while idle. */
  dbNow(): number | null;
  figures(): ReturnType<Worker['figures']>;
  /** Claims nothing until `resume`. Running items continue. */
  pause(): void;
  resume(): void;
  /** Resolves when the first lease stands. */
  start(deps: LocalWorkerDeps): Promise<void>;
  /** See Worker.stop; ends the sweeper too. */
  stop(deadlineMs: number): Promise<void>;
}

export interface LocalWorkerDeps {
  shared: SharedParts;
  client: UpstreamClient;
  observe: WorkerDeps['observe'];
  /** Name of this replica. */
  instance: string;
  /** True: what former workers of this name hold is taken back before anything is claimed. */
  takeBack: boolean;
}

/** Makes the place of a worker, idle. */
export function createLocalWorker(): LocalWorker {
  let running: { worker: Worker; sweeper: Sweeper } | null = null;
  let paused = false;
  const wake = () => running?.worker.wake();

  return {
    wake,
    cancelBatch: (batchId) => running?.worker.cancelBatch(batchId),
    heartbeatNow: () => void running?.worker.lease.heartbeatNow(),
    dbNow: () => running?.worker.dbNow() ?? null,
    figures: () => running?.worker.figures() ?? { running: 0, waiting: 0, committing: 0 },
    pause() {
      paused = true;
    },
    resume() {
      if (!paused) return;
      paused = false;
      wake();
    },
    start({ shared, client, observe, instance, takeBack }) {
      const { compactor, validator } = shared;
      const sweeper = shared.createSweeper({
        instance,
        selfId: () => running?.worker.lease.id() ?? null,
        mayRescue: () => running?.worker.lease.mayRescue() ?? false,
        wake,
        validate: async () => validator.poke(),
      });
      const worker = shared.createWorker({
        client,
        instance,
        concurrency: shared.app.config.concurrency,
        invocation: false,
        paused: () => paused,
        onFinished: (ids) => void compactor.compact(ids),
        onHeartbeat: (heartbeat) => void sweeper.onHeartbeat(heartbeat),
        onFirstLease: async (workerId) => {
          if (!takeBack) return;
          const { finished } = await takeBackFormer(shared.rescue(instance), workerId);
          void compactor.compact(finished);
        },
        observe,
      });
      running = { worker, sweeper };
      return worker.started;
    },
    async stop(deadlineMs) {
      await Promise.all([running?.worker.stop(deadlineMs), running?.sweeper.stop()]);
    },
  };
}
