import { once } from 'node:events';
import { authenticate, type Caller, type Headers } from '../auth/authenticate.ts';
import type { ProgressDeps } from '../batch/progress.ts';
import type { CatalogCache } from '../catalog/catalog-cache.ts';
import type { SecretBox } from '../catalog/secrets/secret-box.ts';
import { migrate } from '../db/migrate.ts';
import type { KeyPool } from '../keypool/pool.ts';
import type { Wake, WakeQueue } from '../queue/queue.ts';
import { type AppOptions, type Foundation, layFoundation } from './foundation.ts';
import { applyAtStart } from './home.ts';
import { type Metrics, observeWorker } from './metrics.ts';
import { type Part, startSteps, stopParts } from './part.ts';
import { createReadiness, type NotReady, type Readiness } from './readiness.ts';
import type { AppCore } from './shared-parts.ts';
import { watchingParts } from './watching-parts.ts';

/** Everything that handlers are made of in the container. */
export interface App extends AppCore, ProgressDeps {
  db: AppCore['db'];
  queue: WakeQueue;
  pool: KeyPool;
  metrics: Metrics;
  catalogCache: CatalogCache;
  secretBox: SecretBox | null;
  /** Bearer of the control API; null answers 401 to everything. */
  adminToken: string | null;
  /** Where a generated admin token is; null when it was given. */
  adminTokenFile: string | null;
  listenUrl(): string | null;
  notReady(): NotReady | null;
  /** The present fault of a service that was ready before, else null; calls are still tried. */
  unwell(): NotReady | null;
  authenticate(headers: Headers): Promise<Caller>;
  /** Name of this replica in usage events and leases. */
  readonly instance: string;
  /** Ends what this replica's own worker holds of a cancelled batch. */
  abortHere(batchId: string): void;
  /** Writes the results of finished batches; resolves when that is done, or put off. */
  compact(batchIds: readonly string[]): Promise<void>;
  /** A batch of the OpenAI surface waits for its validation. */
  wakeValidator(): void;
  /** Does the work of a wake-up, as the worker handler does. */
  wake(wake: Wake): void;
  /** Resolves when the service is ready; rejects with a ConfigError that ends the process. */
  ready: Promise<void>;
  /**
   * Lets running items finish until the deadline, flushes, ends the lease; when `served` has resolved too (the last
   * request), closes clients and stops Postgres last.
   */
  stop(deadlineMs: number, served: Promise<unknown>): Promise<void>;
}

/**
 * Builds the service in its container form. Returns as soon as clients exist; migrations, catalogue and worker follow
 * behind `ready`. Throws ConfigError.
 */
export async function createApp(options: AppOptions): Promise<App> {
  const { log } = options;
  const stopping = new AbortController();
  const foundation = await layFoundation(options, stopping.signal);
  const starting = startingParts(foundation);
  const readiness = createReadiness(startSteps(starting), log, stopping.signal);
  const wake = wakeOf(foundation, readiness);
  const parts = [...starting, ...watchingParts(foundation, readiness, { log, wake })];
  return {
    ...handlerParts(foundation),
    notReady: readiness.notReady,
    wake,
    get instance() {
      return foundation.replica.name();
    },
    ready: readiness.done,
    async stop(deadlineMs, served) {
      stopping.abort();
      await readiness.done.catch(() => {});
      const requests: Part = { name: 'requests', stop: { phase: 'work', run: () => served } };
      await stopParts([...parts, requests], deadlineMs, log);
    },
  };
}

/** The parts that the service waits for, in the order in which they start. */
function startingParts(foundation: Foundation): Part[] {
  const { home, worker, database, shared, client, replica, options } = foundation;
  const { compactor, validator, wakes, app } = shared;
  return [
    { name: 'postgres', stop: { phase: 'postgres', run: () => home.embedded?.stop() } },
    {
      name: 'database',
      start: {
        waiting: 'waiting for the database and its migrations',
        run: () => done(migrate(home.directDsn, options.log)),
      },
      stop: { phase: 'database', run: database.db.close },
    },
    {
      name: 'payload store',
      start: { waiting: 'waiting for the payload store', run: shared.checkStore },
      stop: { phase: 'connections', run: app.payloads.close },
    },
    {
      name: 'catalogue',
      start: { waiting: 'waiting for the catalogue', run: () => done(loadFirstCatalog(foundation)) },
    },
    {
      name: 'instance lock',
      start: { waiting: 'waiting for the instance lock', run: () => done(replica.lock()) },
      stop: { phase: 'connections', run: replica.release },
    },
    { name: 'wake-ups', stop: { phase: 'connections', run: wakes.close } },
    { name: 'upstream client', stop: { phase: 'connections', run: client.close } },
    { name: 'compactor', stop: { phase: 'work', run: compactor.stop } },
    { name: 'validator', stop: { phase: 'work', run: validator.stop } },
    {
      name: 'worker',
      start: { waiting: 'waiting for the worker', run: () => done(startWorker(foundation)) },
      stop: { phase: 'work', run: worker.stop },
    },
    {
      // Once more, after the lease was made: a `rekey` that ran in between did not see the lease.
      name: 'master key',
      start: { waiting: 'waiting for the check of the master key', run: () => done(shared.checkSecrets()) },
    },
  ];
}

/** The parts that handlers have in the container, without readiness and life cycle. */
function handlerParts(foundation: Foundation): Omit<App, 'notReady' | 'wake' | 'instance' | 'ready' | 'stop'> {
  const { home, worker, database, shared, metrics, options } = foundation;
  const { pool, catalogCache, secretBox, tokens, compactor, validator, app } = shared;
  return {
    ...app,
    queue: {
      send(wake, count) {
        // Our own worker does not need the round trip, nor the LISTEN connection, to hear of our own submits.
        if (wake.kind === 'work') worker.wake();
        return shared.wakes.send(wake, count);
      },
    },
    pool,
    metrics,
    catalogCache,
    secretBox,
    adminToken: home.adminToken,
    adminTokenFile: home.adminTokenFile,
    listenUrl: options.listenUrl,
    unwell: () => (database.isUp() ? null : { code: 'not_ready', reason: 'waiting for the database' }),
    authenticate: (headers) =>
      authenticate(headers, catalogCache.current(), { nowMs: worker.dbNow() ?? app.clock.now(), tokens }),
    abortHere: worker.cancelBatch,
    workers: { leaseSeconds: shared.periods.leaseSeconds, onLambda: false },
    compact: compactor.compact,
    wakeValidator: validator.poke,
  };
}

function wakeOf({ worker, shared }: Foundation, readiness: Readiness): App['wake'] {
  return (wake) => {
    if (wake.kind === 'work') worker.wake();
    else if (wake.kind === 'cancel') worker.cancelBatch(wake.batchId);
    else if (readiness.notReady() === null) void shared.catalogCache.refresh();
  };
}

async function loadFirstCatalog({ shared, options }: Foundation): Promise<void> {
  const { config, env, log } = options;
  const { catalogCache, secretBox, app } = shared;
  await shared.checkSecrets();
  if (config.catalogPath !== null) await applyAtStart(app.db, config.catalogPath, env, secretBox, log);
  await catalogCache.refresh();
  catalogCache.current();
}

async function startWorker({ worker, shared, client, metrics, replica, stopping }: Foundation): Promise<void> {
  const started = worker.start({
    shared,
    client,
    observe: observeWorker(metrics, shared.app.clock),
    instance: replica.name(),
    takeBack: replica.isLocked(),
  });
  // A stop does not wait for a start that waits for the database.
  await Promise.race([started, once(stopping, 'abort')]);
}

/** A step that is done when it resolves. */
async function done(work: Promise<unknown>): Promise<null> {
  await work;
  return null;
}
