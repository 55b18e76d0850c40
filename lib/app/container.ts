import { once } from 'node:events';
import type { SQSBatchResponse, SQSEvent } from 'aws-lambda';
import { authenticate, type Caller, type Headers } from '../auth/authenticate.ts';
import { sleep, uuidv7 } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { CatalogCache } from '../catalog/catalog-cache.ts';
import type { SecretBox } from '../catalog/secret-box.ts';
import { createDb } from '../db/database.ts';
import { type InstanceLock, lockInstance } from '../db/instance-lock.ts';
import { migrate } from '../db/migrate.ts';
import type { KeyPool } from '../keypool/pool.ts';
import { createListener } from '../queue/postgres.ts';
import type { Wake, WakeQueue } from '../queue/queue.ts';
import { takeBackFormer } from '../worker/lease/rescue.ts';
import type { Sweeper } from '../worker/sweep/sweep.ts';
import type { Worker } from '../worker/worker.ts';
import { awsOf } from './clients.ts';
import type { Config } from './config.ts';
import { applyAtStart, settle } from './home.ts';
import { createMetrics, type Metrics, observeWorker } from './metrics.ts';
import { type AppCore, createParts } from './parts.ts';
import { createReadiness, type NotReady, type Step } from './readiness.ts';

/** How often a ready replica looks whether the payload store is still the shared one. */
const STORE_CHECK_MS = 10_000;

/**
 * Everything that handlers are made of in the container. This file is the composition root: with app-parts.ts (what all forms
 * have in common), app-clients.ts and app-lambda.ts it is the only place that builds clients.
 */
export interface App extends AppCore {
  queue: WakeQueue;
  pool: KeyPool;
  metrics: Metrics;
  catalogCache: CatalogCache;
  secretBox: SecretBox | null;
  /** Bearer of the control API; null answers 401 to everything. */
  adminToken: string | null;
  /** Where a generated admin token is; null when it was given. */
  adminTokenFile: string | null;
  streaming: boolean;
  listenUrl(): string | null;
  notReady(): NotReady | null;
  /** What is wrong at present, though the service was ready before; calls are still tried. */
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
  /** What a wake-up sets going; the worker handler's own work. */
  wake(wake: Wake): void;
  /** Resolves when the service is ready; rejects with a ConfigError that ends the process. */
  ready: Promise<void>;
  /**
   * Lets running items finish until the deadline, flushes, ends the lease; when `served` has resolved too (the last
   * request), closes clients and stops Postgres last.
   */
  stop(deadlineMs: number, served: Promise<unknown>): Promise<void>;
}

export interface AppOptions {
  config: Config;
  /** The inference port's address, once it is listened on; null while there is none that callers could use. */
  listenUrl(): string | null;
  env: Readonly<Record<string, string | undefined>>;
  log: Log;
  /** What a wake-up from the queue is passed to: in the container the worker handler. */
  onWake(app: App, wake: Wake): void;
  /** The same for SQS messages (RELAY_QUEUE=sqs). */
  onMessages(app: App, event: SQSEvent): Promise<SQSBatchResponse>;
}

/**
 * Builds the service in its container form. Returns as soon as clients exist; migrations, catalogue and worker follow
 * behind `ready`. Throws ConfigError.
 */
export async function createApp({ config, env, log, listenUrl, onWake, onMessages }: AppOptions): Promise<App> {
  const stopping = new AbortController();
  const home = await settle(config, log);
  let databaseUp = true;
  const db = createDb({
    dsn: home.dsn,
    max: config.pgPool,
    prepared: config.pgPrepared,
    applicationName: 'relay-batch',
    log,
    onState(up) {
      // Looked at again at once: one broken connection of the pool is no outage.
      if (!up && databaseUp) void worker?.lease.heartbeatNow();
      databaseUp = up;
    },
  });
  const parts = await createParts({ config, env, log, db, masterKey: home.masterKey });
  const { wakes, pool, catalogCache, secretBox, tokens, compactor, validator } = parts;
  const { clock, payloads } = parts.app;
  const queue: WakeQueue = {
    send(wake, count) {
      // Our own worker does not need the round trip, nor the LISTEN connection, to hear of our own submits.
      if (wake.kind === 'work') worker?.wake();
      return wakes.send(wake, count);
    },
  };
  const client = parts.createClient();
  const metrics = createMetrics({
    running: () => worker?.figures().running ?? 0,
    waiting: () => worker?.figures().waiting ?? 0,
    committing: () => worker?.figures().committing ?? 0,
  });
  let instance = home.instance;
  let worker: Worker | null = null;
  let sweeper: Sweeper | null = null;
  let lock: InstanceLock | null = null;

  const steps: Step[] = [
    {
      waiting: 'waiting for the database and its migrations',
      run: async () => {
        await migrate(home.directDsn, log);
        return null;
      },
    },
    { waiting: 'waiting for the payload store', run: parts.checkStore },
    {
      waiting: 'waiting for the catalogue',
      run: async () => {
        await parts.checkSecrets();
        if (config.catalogPath !== null) await applyAtStart(db, config.catalogPath, env, secretBox, log);
        await catalogCache.refresh();
        catalogCache.current();
        return null;
      },
    },
    {
      waiting: 'waiting for the instance lock',
      run: async () => {
        lock = await lockInstance(home.directDsn, home.instance, log);
        if (!lock.held) log.warn('another live process has this instance id, going on under one of our own');
        return null;
      },
    },
    {
      waiting: 'waiting for the worker',
      run: async () => {
        if (!lock?.held) instance = `${home.instance}-${uuidv7()}`;
        ({ worker, sweeper } = startWorker());
        // A stop does not wait for a start that waits for the database.
        await Promise.race([worker.started, once(stopping.signal, 'abort')]);
        return null;
      },
    },
    {
      // Again, now that our lease stands: a `rekey` that ran meanwhile has not seen it.
      waiting: 'waiting for the check of the master key',
      run: async () => {
        await parts.checkSecrets();
        return null;
      },
    },
  ];

  const startWorker = (): { worker: Worker; sweeper: Sweeper } => {
    const made = parts.createWorker({
      client,
      instance,
      concurrency: config.concurrency,
      paused: () => readiness.degraded(),
      onFinished: (ids) => void compactor.compact(ids),
      onHeartbeat: (heartbeat) => void sweep.onHeartbeat(heartbeat),
      onFirstLease: async (workerId) => {
        if (!lock?.held) return;
        const { finished } = await takeBackFormer(parts.rescue(instance), workerId);
        void compactor.compact(finished);
      },
      observe: observeWorker(metrics, clock),
    });
    const { id: selfId, mayRescue } = made.lease;
    const sweep = parts.createSweeper({
      instance,
      selfId,
      mayRescue,
      wake: made.wake,
      validate: async () => validator.poke(),
    });
    return { worker: made, sweeper: sweep };
  };

  const pollWhenReady = async (): Promise<{ stop(): Promise<void> } | null> => {
    const { createSqsPoller } = await import('../queue/sqs.ts');
    await readiness.done.catch(() => {});
    if (stopping.signal.aborted || readiness.notReady() !== null) return null;
    const handle = (event: SQSEvent) => onMessages(app, event);
    return createSqsPoller({ queueUrl: config.sqsQueueUrl!, ...awsOf(env, 'SQS'), log, handle });
  };

  const readiness = createReadiness(steps, log, stopping.signal);
  const listener = createListener({
    dsn: home.directDsn,
    log,
    onWake: (wake) => onWake(app, wake),
    onReconnect: () => {
      if (readiness.notReady() !== null) return;
      void catalogCache.refresh();
      worker?.wake();
    },
    onBreakers: () => void pool.refresh(),
  });
  const polling = config.queue === 'sqs' ? pollWhenReady() : null;
  const storeChecks = watchStore(readiness.done, stopping.signal, async () => {
    const reason = await parts.checkStore();
    const recovered = readiness.degraded() && reason === null;
    readiness.degrade(reason);
    if (recovered) worker?.wake();
  });

  const app: App = {
    ...parts.app,
    queue,
    pool,
    metrics,
    catalogCache,
    secretBox,
    adminToken: home.adminToken,
    adminTokenFile: home.adminTokenFile,
    streaming: true,
    listenUrl,
    notReady: readiness.notReady,
    unwell: () => (databaseUp ? null : { code: 'not_ready', reason: 'waiting for the database' }),
    authenticate: (headers) =>
      authenticate(headers, catalogCache.current(), { nowMs: worker?.dbNow() ?? clock.now(), tokens }),
    get instance() {
      return instance;
    },
    abortHere: (batchId) => worker?.cancelBatch(batchId),
    compact: compactor.compact,
    wakeValidator: validator.poke,
    wake(wake) {
      if (wake.kind === 'work') worker?.wake();
      else if (wake.kind === 'cancel') worker?.cancelBatch(wake.batchId);
      else if (readiness.notReady() === null) void catalogCache.refresh();
    },
    ready: readiness.done,
    async stop(deadlineMs, served) {
      stopping.abort();
      await readiness.done.catch(() => {});
      await (await polling)?.stop();
      await Promise.all([
        worker?.stop(deadlineMs),
        sweeper?.stop(),
        validator.stop(),
        compactor.stop(),
        storeChecks,
        served,
      ]);
      await Promise.all([listener.stop(), lock?.release(), client.close(), payloads.close()]);
      wakes.close();
      await db.close();
      await home.embedded?.stop();
    },
  };
  return app;
}

async function watchStore(ready: Promise<void>, signal: AbortSignal, check: () => Promise<void>): Promise<void> {
  await ready.catch(() => {});
  while (!signal.aborted) {
    await sleep(STORE_CHECK_MS, signal);
    if (!signal.aborted) await check().catch(() => {});
  }
}
