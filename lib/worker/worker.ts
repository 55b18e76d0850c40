import { EventEmitter } from 'node:events';
import type { Clock } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import type { Database } from '../db/database.ts';
import type { KeyPool } from '../keypool/pool.ts';
import { reserve } from '../limits/reserve.ts';
import { type Charge, charge, type Refund, refund } from '../limits/settle.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Catalog } from '../model/catalog.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import type { CallResult, UpstreamClient } from '../upstream/call-result.ts';
import { createSuccesses } from '../usage/successes.ts';
import { createClaimer } from './claim.ts';
import { createGroupCommit } from './commit.ts';
import type { ItemOutcome } from './commit-group.ts';
import { createEngine } from './engine.ts';
import { createHoldings } from './holdings.ts';
import { createJudge, type PreparedItem } from './item/judge.ts';
import type { Limits } from './item/prepare.ts';
import type { Heartbeat } from './lease/lease.sql.ts';
import { createLease, type Lease } from './lease/lease.ts';
import type { Tenure } from './lease/tenure.ts';
import { loadBodies } from './load.ts';
import type { Periods } from './periods.ts';
import { createReleases } from './releases.ts';
import { createItemRunner } from './runner.ts';

export interface WorkerDeps {
  db: Database;
  store: PayloadStore;
  client: UpstreamClient;
  pool: KeyPool;
  clock: Clock;
  log: Log;
  instance: string;
  concurrency: number;
  /** It lives for one invocation on Lambda. */
  invocation: boolean;
  flushMs: number;
  itemTimeoutMs: number;
  periods: Periods;
  onWorkerLoss: 'rerun' | 'discard';
  /** True while nothing may be claimed: the payload store is not the right one. */
  paused(): boolean;
  catalog(): Catalog;
  refreshCatalog(version: number): Promise<void>;
  /** Batches without an open item: to be compacted. */
  onFinished(batchIds: readonly string[]): void;
  onHeartbeat(heartbeat: Heartbeat): void;
  /** A worker id holds a lease for the first time, before anything is claimed under it. */
  onFirstLease(workerId: string): Promise<void>;
  /** Nothing is in hand and nothing can be claimed (`EngineDeps.onRest`); for a worker that ends then. */
  onRest?: (nextDueMs: number | null) => void;
  observe: {
    claim(seconds: number): void;
    flush(figures: { items: number; bytes: number; seconds: number }): void;
    final(state: string, count: number): void;
    released(count: number): void;
    upstream(host: string, result: CallResult): void;
  };
}

export interface Worker {
  wake(): void;
  cancelBatch(batchId: string): void;
  /** The database's clock, epoch ms. */
  dbNow(): number;
  lease: Pick<Lease, 'id' | 'healthy' | 'mayRescue' | 'heartbeatNow'>;
  figures(): { running: number; waiting: number; committing: number };
  /** Resolves when the first lease stands and work may be claimed. */
  started: Promise<void>;
  /** Stops claiming, lets running items finish until the deadline, flushes, ends the lease. */
  stop(deadlineMs: number): Promise<void>;
}

/** The breaker cache is at most this old while items run. */
const BREAKERS_EVERY_MS = 1000;
const REFUND_WINDOW_MS = 5;
/** A concurrency row counts for no longer than this beyond an item's time limit, whatever happens to its worker. */
const HOLD_MARGIN_S = 60;

/** The events of a worker's parts. */
interface WorkerEvents {
  tenure: [tenure: Tenure];
  heartbeat: [heartbeat: Heartbeat];
  /** No heartbeat got through for so long that others may have the items. */
  silent: [];
  committed: [items: readonly ItemOutcome[], finished: readonly string[]];
  released: [items: readonly ClaimedItem[], finished: readonly string[], soonestMs: number];
  /** Store or database refuse writes, or take them again. */
  blocked: [blocked: boolean];
}

/**
 * One worker: lease, claims, slots, group commit and releases, joined. Each part is made of parts that exist. Calls in
 * the other direction, from the lease or a recorded outcome back to the engine, are events, which are connected last.
 * Nothing happens before the lease is started at the end. docs/state-machine.md, "Inside a worker", lists its states.
 */
export function createWorker(deps: WorkerDeps): Worker {
  const { db, store, clock, log, instance, client, pool, periods } = deps;
  const events = new EventEmitter<WorkerEvents>();
  const started = Promise.withResolvers<void>();
  const stopping = new AbortController();
  let ready = false;
  let blocked = false;

  const background = (name: string, work: Promise<unknown>) => {
    work.catch((error) => log.warn({ err: reasonOf(error) }, `${name} failed`));
  };
  const forget = (items: readonly ItemOutcome[]) => {
    for (const { outcome } of items) client.release(outcome.response);
  };

  const holdings = createHoldings();
  const lease = createLease({
    db,
    clock,
    log,
    kind: { instance, slots: deps.concurrency, invocation: deps.invocation },
    periods,
    heldBatches: holdings.batchIds,
    // An invocation also pauses when its time runs out.
    standing: () => ({
      blocked: blocked || (!deps.invocation && deps.paused()),
      passedOver: claimer.passedOver(),
    }),
    onTenure: (tenure) => events.emit('tenure', tenure),
    onHeartbeat: (heartbeat) => events.emit('heartbeat', heartbeat),
    onSilent: () => events.emit('silent'),
  });
  const commits = createGroupCommit({
    db,
    store,
    clock,
    log,
    instance,
    flushMs: deps.flushMs,
    periods,
    observe: deps.observe.flush,
    onCommitted: (items, finished) => events.emit('committed', items, finished),
    onDropped: forget,
    onBlocked: (state) => events.emit('blocked', state),
  });
  const releases = createReleases({
    db,
    log,
    instance,
    retry: periods.databaseRetry,
    onReleased: (items, finished, soonestMs) => events.emit('released', items, finished, soonestMs),
  });
  const claimer = createClaimer({
    db,
    log,
    retry: periods.databaseRetry,
    instance,
    random: Math.random,
    refreshCatalog: deps.refreshCatalog,
    catalogVersion: () => deps.catalog().version,
    observe: deps.observe.claim,
  });
  const refunds = createRefunds((all) => background('refund', refund(db, all)));
  const limits: Limits = {
    reserve: (requests) => reserve(db, requests, deps.itemTimeoutMs / 1000 + HOLD_MARGIN_S),
    refund: refunds.add,
  };
  const runner = createItemRunner({
    judge: createJudge({ catalog: deps.catalog, nowMs: lease.dbNow }),
    limits,
    client,
    pool,
    clock,
    catalog: deps.catalog,
    nowMs: lease.dbNow,
    itemTimeoutMs: deps.itemTimeoutMs,
    observe: deps.observe.upstream,
    successes: createSuccesses(db, clock.monotonic),
  });
  const engine = createEngine<PreparedItem>({
    clock,
    log,
    concurrency: deps.concurrency,
    periods,
    mayClaim: () => ready && !blocked && !deps.paused() && lease.healthy(),
    mayRun: lease.stands,
    neverTwice: deps.onWorkerLoss === 'discard',
    holdings,
    claimer,
    load: (items) => loadBodies(store, items),
    runner,
    commits,
    releases,
    ...(deps.onRest ? { onRest: deps.onRest } : {}),
  });

  /** Before anything is claimed, the first tenure takes back what former workers of this instance left. */
  const takeBackFormer = async () => {
    const takeBack = async () => {
      const workerId = lease.id();
      if (workerId === null) throw new Error('no lease stands');
      await deps.onFirstLease(workerId);
    };
    const done = await retryUntil(takeBack, {
      ...periods.databaseRetry,
      signal: stopping.signal,
      onFirst: (error) => log.warn({ err: reasonOf(error) }, 'start of the worker waits for the database'),
    });
    if (done.aborted) return;
    ready = true;
    started.resolve();
    engine.wake();
  };

  events.on('tenure', (tenure) => {
    engine.begin(tenure);
    if (ready) engine.wake();
  });
  events.once('tenure', () => void takeBackFormer());
  events.on('heartbeat', (heartbeat) => {
    for (const id of heartbeat.cancelled) engine.cancelBatch(id);
    background('catalogue refresh', deps.refreshCatalog(heartbeat.catalogVersion));
    engine.tidy();
    deps.onHeartbeat(heartbeat);
  });
  events.on('silent', engine.abortAll);
  events.on('blocked', (state) => {
    blocked = state;
    void lease.heartbeatNow(); // the progress of batches says so
    if (!blocked) engine.wake();
  });
  events.on('committed', (items, finished) => {
    countFinal(deps, items);
    forget(items);
    const charges = chargesOf(items);
    if (charges.length > 0) background('charge of token limits', charge(db, charges));
    engine.settled(items);
    if (finished.length > 0) deps.onFinished(finished);
  });
  events.on('released', (items, finished, soonestMs) => {
    deps.observe.released(items.length);
    engine.letGo(items);
    if (finished.length > 0) deps.onFinished(finished);
    engine.wakeIn(soonestMs);
  });
  const breakers = setInterval(() => {
    if (engine.running() > 0) void pool.refresh();
  }, BREAKERS_EVERY_MS);
  lease.start();

  return {
    wake: engine.wake,
    cancelBatch: engine.cancelBatch,
    dbNow: lease.dbNow,
    lease,
    started: started.promise,
    figures: () => ({ running: engine.running(), waiting: engine.waiting(), committing: commits.size() }),
    async stop(deadlineMs) {
      stopping.abort();
      const clean = await engine.stop(deadlineMs);
      clearInterval(breakers);
      refunds.flush();
      await pool.flush();
      await lease.stop(clean);
    },
  };
}

function countFinal(deps: WorkerDeps, items: readonly ItemOutcome[]): void {
  let completed = 0;
  let discarded = 0;
  for (const { outcome } of items) {
    if (outcome.state === 'completed') completed++;
    else if (outcome.state === 'discarded') discarded++;
  }
  deps.observe.final('completed', completed);
  deps.observe.final('discarded', discarded);
  deps.observe.final('cancelled', items.length - completed - discarded);
}

function chargesOf(items: readonly ItemOutcome[]): Charge[] {
  return items.flatMap(({ outcome }) => {
    const { tokens } = outcome.usage;
    const rules = outcome.charged;
    return tokens !== null && rules !== undefined && rules.length > 0 ? [{ rules, tokens }] : [];
  });
}

/** Refunds come one by one, an open breaker brings many: they are sent together. */
function createRefunds(send: (all: readonly Refund[]) => void): {
  add(more: readonly Refund[]): void;
  flush(): void;
} {
  let waiting: Refund[] = [];
  let timer: NodeJS.Timeout | null = null;
  const flush = () => {
    if (timer !== null) clearTimeout(timer);
    timer = null;
    if (waiting.length > 0) send(waiting);
    waiting = [];
  };
  return {
    add(more) {
      waiting.push(...more);
      timer ??= setTimeout(flush, REFUND_WINDOW_MS);
    },
    flush,
  };
}
