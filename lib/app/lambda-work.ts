import { uuidv7 } from '../base/clock.ts';
import { type InvocationHooks, runInvocation } from '../worker/invocation.ts';
import { takeBackFormer } from '../worker/lease/rescue.ts';
import { readDemand } from '../worker/sweep/wakeups.sql.ts';
import type { Worker } from '../worker/worker.ts';
import { NOTHING_DUE, type SharedParts } from './shared-parts.ts';

/** Workers that run at once (reserved concurrency): more wake-ups would only wait. */
const MAX_WORKERS = 8;
/** A compaction is begun with so much left; else the sweep does it. */
const COMPACT_MS = 60_000;

/** The dependencies of an invocation's work. */
export interface InvocationDeps {
  shared: SharedParts;
  instance: string;
  /** Wakes so many workers. Never rejects. */
  sendWakes(count: number): Promise<void>;
}

/** Runs items until there is nothing to do or the time runs out, and wakes the next worker when it leaves some. */
export async function workOnce(deps: InvocationDeps, remainingMs: () => number): Promise<void> {
  const { compactor, validator, pool, app, periods } = deps.shared;
  await validator.run(remainingMs);
  await pool.ensureFresh();
  const { handled, finished } = await runItems(deps, remainingMs);
  // One that found nothing sends nothing: what is due then is not for it to claim, and it would go round for ever.
  if (handled > 0 && (await readDemand(app.db, 1, periods.leaseSeconds)).due > 0) await deps.sendWakes(1);
  if (finished.length > 0 && remainingMs() > COMPACT_MS) await compactor.compact(finished);
  app.log.info({ handled, remainingMs: remainingMs() }, 'invocation done');
}

/** The result of one invocation: items it handled, and batches that have no open item any more. */
interface Tally {
  handled: number;
  finished: string[];
}

async function runItems({ shared, instance }: InvocationDeps, remainingMs: () => number): Promise<Tally> {
  const { config } = shared.app;
  // Its own in each invocation: connections that were frozen look alive, and their end would open a key's breaker.
  const client = shared.createClient();
  const tally: Tally = { handled: 0, finished: [] };
  const count = (n: number) => {
    tally.handled += n;
  };
  const startWorker = (hooks: InvocationHooks): Worker =>
    shared.createWorker({
      ...hooks,
      client,
      instance,
      concurrency: Math.max(1, config.concurrency),
      invocation: true,
      onFinished: (ids) => void tally.finished.push(...ids),
      onHeartbeat() {},
      onFirstLease: async (workerId) =>
        void tally.finished.push(...(await takeBackFormer(shared.rescue(instance), workerId)).finished),
      observe: { claim() {}, flush() {}, final: (_, n) => count(n), released: count, upstream() {} },
    });
  try {
    await runInvocation({ remainingMs, itemTimeoutMs: config.itemTimeoutMs, startWorker });
  } finally {
    await client.close();
  }
  return tally;
}

export interface SweepOnceOptions {
  /** Also does what is done once an hour. */
  housekeep: boolean;
  remainingMs(): number;
}

/** One round of the sweep, with the wake-ups of everything that is due. */
export async function sweepOnce(deps: InvocationDeps, { housekeep, remainingMs }: SweepOnceOptions): Promise<void> {
  const { shared, instance } = deps;
  const { compactor, validator, app, periods } = shared;
  const selfId = uuidv7();
  const sweeper = shared.createSweeper({
    instance,
    selfId: () => selfId,
    mayRescue: () => true,
    validate: async () => void (await validator.run(remainingMs)),
    wake() {},
  });
  try {
    await sweeper.onHeartbeat({ ...NOTHING_DUE, rescueDue: true, expiryDue: true });
    // Before the slow part: a validation or compaction that outlives this invocation must not cost the wake-ups.
    const { due, workers } = await readDemand(app.db, MAX_WORKERS, periods.leaseSeconds);
    if (due > workers) await deps.sendWakes(due - workers);
    await sweeper.onHeartbeat({ ...NOTHING_DUE, compactionDue: true, validationDue: true });
    if (housekeep) await sweeper.housekeep();
  } finally {
    await sweeper.stop();
    await compactor.compact([]); // the sweeper only starts it, and nothing runs after an invocation returns
  }
}
