import type { Clock } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { retryUntil } from '../base/retry.ts';
import type { Database } from '../db/database.ts';
import type { KeyPool } from '../keypool/pool.ts';
import { reserve } from '../limits/reserve.ts';
import { type Charge, charge, type Refund, refund } from '../limits/settle.ts';
import type { Catalog } from '../model/catalog.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import type { CallResult, UpstreamClient } from '../upstream/call-result.ts';
import { createClaimer } from './claim.ts';
import { createGroupCommit, type FinalItem } from './commit.ts';
import { createEngine, type Engine } from './engine.ts';
import { createJudge, type PreparedItem } from './item/judge.ts';
import type { Limits } from './item/prepare.ts';
import type { Heartbeat } from './lease/lease.sql.ts';
import { createLease, type Lease } from './lease/lease.ts';
import { loadBodies } from './load.ts';
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
  flushMs: number;
  itemTimeoutMs: number;
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
  /** Stops claiming, gives running items until the deadline, flushes, ends the lease. */
  stop(deadlineMs: number): Promise<void>;
}

/** What is known of breakers is at most this old while items run. */
const BREAKERS_EVERY_MS = 1000;
const REFUND_WINDOW_MS = 5;
/** Pauses while the database is away. */
const RETRY_MIN_MS = 50;
const RETRY_MAX_MS = 1000;
/** A concurrency row counts for no longer than this beyond an item's time limit, whatever becomes of its worker. */
const HOLD_MARGIN_S = 60;

/** One worker: lease, claims, slots, group commit and releases, joined. */
export function createWorker(deps: WorkerDeps): Worker {
  const { db, clock, log, instance } = deps;
  let blocked = false;
  let ready = false;
  const stopping = new AbortController();
  let markStarted: () => void = () => {};
  const started = new Promise<void>((resolve) => {
    markStarted = resolve;
  });

  const background = (name: string, work: Promise<unknown>) => {
    work.catch((error) => log.warn({ err: reasonOf(error) }, `${name} failed`));
  };
  const refunds = createRefunds((all) => background('refund', refund(db, all)));
  const limits: Limits = {
    reserve: (requests) => reserve(db, requests, deps.itemTimeoutMs / 1000 + HOLD_MARGIN_S),
    refund: refunds.add,
  };
  const letGo = (items: readonly FinalItem[]) => {
    for (const { outcome } of items) deps.client.release(outcome.response);
  };
  const commits = createGroupCommit({
    db,
    store: deps.store,
    clock,
    log,
    instance,
    flushMs: deps.flushMs,
    observe: deps.observe.flush,
    onDropped: letGo,
    onBlocked: (state) => {
      blocked = state;
      if (!blocked) engine.wake();
    },
    onCommitted(items, finished) {
      countFinal(deps, items);
      letGo(items);
      const charges = chargesOf(items);
      if (charges.length > 0) background('charge of token limits', charge(db, charges));
      engine.settled(items);
      if (finished.length > 0) deps.onFinished(finished);
    },
  });
  const releases = createReleases({
    db,
    log,
    instance,
    onReleased(items, finished, soonestMs) {
      deps.observe.released(items.length);
      engine.letGo(items);
      if (finished.length > 0) deps.onFinished(finished);
      engine.wakeIn(soonestMs);
    },
  });
  const lease = createLease({
    db,
    clock,
    log,
    instance,
    heldBatches: () => engine.heldBatches(),
    onHeartbeat(heartbeat) {
      for (const id of heartbeat.cancelled) engine.cancelBatch(id);
      background('catalogue refresh', deps.refreshCatalog(heartbeat.catalogVersion));
      engine.tidy();
      deps.onHeartbeat(heartbeat);
    },
    onSilent: () => engine.abortAll(),
    onTenure(tenure) {
      engine.begin(tenure);
      if (ready) engine.wake();
      else void begin();
    },
  });
  let beginning = false;
  const begin = async () => {
    if (beginning) return;
    beginning = true;
    const takeBack = async () => {
      const workerId = lease.id();
      if (workerId === null) throw new Error('no lease stands');
      await deps.onFirstLease(workerId);
    };
    await retryUntil(takeBack, {
      min: RETRY_MIN_MS,
      max: RETRY_MAX_MS,
      signal: stopping.signal,
      onFirst: (error) => log.warn({ err: reasonOf(error) }, 'start of the worker waits for the database'),
    });
    ready = true;
    markStarted();
    engine.wake();
  };
  const judge = createJudge({ catalog: deps.catalog, nowMs: lease.dbNow });
  const runner = createItemRunner({
    judge,
    limits,
    client: deps.client,
    pool: deps.pool,
    clock,
    catalog: deps.catalog,
    nowMs: lease.dbNow,
    itemTimeoutMs: deps.itemTimeoutMs,
    observe: deps.observe.upstream,
  });
  const engine: Engine = createEngine<PreparedItem>({
    clock,
    log,
    concurrency: deps.concurrency,
    mayClaim: () => ready && !blocked && !deps.paused() && lease.healthy(),
    mayRun: lease.stands,
    neverTwice: deps.onWorkerLoss === 'discard',
    claimer: createClaimer({
      db,
      log,
      instance,
      random: Math.random,
      refreshCatalog: deps.refreshCatalog,
      catalogVersion: () => deps.catalog().version,
      observe: deps.observe.claim,
    }),
    load: (items) => loadBodies(deps.store, items),
    runner,
    commits,
    releases,
    ...(deps.onRest ? { onRest: deps.onRest } : {}),
  });
  const breakers = setInterval(() => {
    if (engine.running() > 0) void deps.pool.refresh();
  }, BREAKERS_EVERY_MS);

  return {
    wake: engine.wake,
    cancelBatch: engine.cancelBatch,
    dbNow: lease.dbNow,
    lease,
    started,
    figures: () => ({ running: engine.running(), waiting: engine.waiting(), committing: commits.size() }),
    async stop(deadlineMs) {
      stopping.abort();
      const clean = await engine.stop(deadlineMs);
      clearInterval(breakers);
      refunds.flush();
      await deps.pool.flush();
      await lease.stop(clean);
    },
  };
}

function countFinal(deps: WorkerDeps, items: readonly FinalItem[]): void {
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

function chargesOf(items: readonly FinalItem[]): Charge[] {
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
