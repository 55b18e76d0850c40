import type { TokenVerifier } from '../auth/authenticate.ts';
import { checkSigningKeys } from '../auth/signing-keys.ts';
import { purgeExpiredTokens } from '../auth/tokens.sql.ts';
import { createTokenVerifier } from '../auth/verify-token.ts';
import { type BodyBudget, createBodyBudget } from '../base/body-budget.ts';
import { type Clock, systemClock } from '../base/clock.ts';
import { createKeyedTurns, type KeyedTurns } from '../base/keyed-turns.ts';
import type { Log } from '../base/log.ts';
import { createCompactor, type ResultsWriters } from '../batch/results/compact.ts';
import { createReaderBudget, type ReaderBudget } from '../batch/results/reader-budget.ts';
import { type CatalogCache, createCatalogCache } from '../catalog/catalog-cache.ts';
import { loadCatalog } from '../catalog/load.ts';
import { checkMasterKey } from '../catalog/secrets/rekey.ts';
import { createSecretBox, parseMasterKey, type SecretBox } from '../catalog/secrets/secret-box.ts';
import type { Database } from '../db/database.ts';
import { createKeyPool, type KeyPool } from '../keypool/pool.ts';
import { purgeLimits } from '../limits/purge.ts';
import type { Catalog } from '../model/catalog.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import { createStoreCheck } from '../payloads/store-check.ts';
import { writeMessageResults } from '../surfaces/anthropic/write-results.ts';
import { purgeExpiredFiles } from '../surfaces/files/remove-file.ts';
import { deleteExpiredOpenaiBatches } from '../surfaces/openai/openai-batches.sql.ts';
import { purgeValidationTurns } from '../surfaces/openai/validation/validation.sql.ts';
import { createValidator, type Validator } from '../surfaces/openai/validation/validator.ts';
import { writeOpenaiResults } from '../surfaces/openai/write-results.ts';
import type { UpstreamClient } from '../upstream/call-result.ts';
import { createUpstreamClient } from '../upstream/client.ts';
import { type BatchUsage, batchUsage } from '../usage/sums.ts';
import type { Heartbeat } from '../worker/lease/lease.sql.ts';
import type { RescueDeps } from '../worker/lease/rescue.ts';
import { PERIODS, type Periods } from '../worker/periods.ts';
import { createSweeper, type SweepDeps, type Sweeper } from '../worker/sweep/sweep.ts';
import { createWorker, type Worker, type WorkerDeps } from '../worker/worker.ts';
import { type Env, openPayloads, openQueue, type Wakes } from './clients.ts';
import type { Config } from './config.ts';

/** How finished batches of the SDK surfaces are written; the native form is the compactor's own. */
const RESULTS_WRITERS: ResultsWriters = { openai: writeOpenaiResults, anthropic: writeMessageResults };

/** The memory that all streams of answers may take. */
const READER_BYTES = 256 * 1024 * 1024;

const USER_AGENT = 'relay-batch/0.1';

/** The parts that handlers have in the container and on Lambda alike. */
export interface AppCore {
  config: Config;
  log: Log;
  clock: Clock;
  db: Database;
  payloads: PayloadStore;
  maxItems: number;
  maxRequestBytes: number;
  maxPendingItemsPerOwner: number;
  publicUrl: string | null;
  /** The memory that request bodies of this process may take. */
  bodies: BodyBudget;
  uploadTurns: KeyedTurns;
  /** Streams of answers. */
  readers: ReaderBudget;
  /** Throws until a first catalogue was loaded. */
  catalog(): Catalog;
  batchUsage(batchId: string): Promise<BatchUsage>;
}

/** The options of the worker that differ between the forms of the service. */
export type WorkerOptions = Pick<
  WorkerDeps,
  | 'client'
  | 'instance'
  | 'concurrency'
  | 'invocation'
  | 'paused'
  | 'onRest'
  | 'onFinished'
  | 'onHeartbeat'
  | 'onFirstLease'
  | 'observe'
>;

/** The options of the sweep that differ between the forms. */
export type SweepOptions = Pick<SweepDeps, 'selfId' | 'mayRescue' | 'validate' | 'wake'> & { instance: string };

/** A heartbeat that found nothing to do: for one round of a sweep without a worker, which names what is due. */
export const NOTHING_DUE: Heartbeat = {
  alive: true,
  catalogVersion: 0,
  nowMs: 0,
  cancelled: [],
  rescueDue: false,
  expiryDue: false,
  compactionDue: false,
  validationDue: false,
  workDue: false,
};

/** The parts that every form of the service is put together from. */
export interface SharedParts {
  app: AppCore;
  wakes: Wakes;
  pool: KeyPool;
  catalogCache: CatalogCache;
  secretBox: SecretBox | null;
  tokens: TokenVerifier;
  compactor: Compactor;
  /** Of the OpenAI surface's batches. */
  validator: Validator;
  /** Null when the payload store is the one of this database, else why not. */
  checkStore(): Promise<string | null>;
  /** Throws ConfigError, with both fingerprints, when the master key is not the one that stored secrets need. */
  checkSecrets(): Promise<void>;
  periods: Periods;
  rescue(instance: string): RescueDeps;
  /** A client of its own; the caller that asks for it closes it. */
  createClient(): UpstreamClient;
  createWorker(options: WorkerOptions): Worker;
  /** Sweeps on its own timer until it is stopped. */
  createSweeper(options: SweepOptions): Sweeper;
}

type Compactor = ReturnType<typeof createCompactor>;

export interface SharedPartsOptions {
  config: Config;
  env: Env;
  log: Log;
  db: Database;
  /** Base64; null: nothing stored is encrypted. */
  masterKey: string | null;
  /** Of worker and lease; tests pass shorter ones than the service's. */
  periods?: Periods | undefined;
}

/**
 * Builds what the container form (container.ts), the Lambda form (lambda.ts) and the command line have in common, from the
 * configuration and a database. Throws ConfigError. Connects to nothing, starts nothing.
 */
export async function createSharedParts(options: SharedPartsOptions): Promise<SharedParts> {
  const { config, env, log, db, masterKey, periods = PERIODS } = options;
  const { itemTimeoutMs, onWorkerLoss, maxPendingItemsPerOwner } = config;
  const clock = systemClock;
  const secretBox = masterKey === null ? null : createSecretBox(parseMasterKey(masterKey));
  const payloads = await openPayloads(config, env);
  const wakes = await openQueue(config, env, db);
  const pool = createKeyPool({ db, log, clock, probeLeaseMs: itemTimeoutMs });
  const catalogCache = createCatalogCache({ load: () => loadCatalog(db, env, secretBox, log), log });
  const compactor = createCompactor({ db, payloads, clock, log }, RESULTS_WRITERS);
  const checkStore = createStoreCheck(db, payloads);
  const app = coreOf({ config, log, clock, db, payloads, catalog: () => catalogCache.current() });
  const rescue = (instance: string): RescueDeps => ({
    db,
    log,
    instance,
    onWorkerLoss,
    leaseSeconds: periods.leaseSeconds,
  });
  return {
    app,
    wakes,
    pool,
    catalogCache,
    secretBox,
    tokens: createTokenVerifier({ db, box: secretBox, log, monotonic: clock.monotonic }),
    compactor,
    validator: createValidator({
      db,
      payloads,
      bodies: app.bodies,
      clock,
      log,
      queue: wakes,
      maxPendingItemsPerOwner,
      checkStore,
    }),
    checkStore,
    async checkSecrets() {
      await checkMasterKey(db, secretBox);
      await checkSigningKeys(db, secretBox);
    },
    periods,
    rescue,
    createClient: () =>
      createUpstreamClient({ connections: Math.max(1, config.concurrency), userAgent: USER_AGENT, clock }),
    createWorker: workerFactory(app, pool, catalogCache, periods),
    createSweeper: sweeperFactory(app, compactor, rescue),
  };
}

function coreOf(core: Pick<AppCore, 'config' | 'log' | 'clock' | 'db' | 'payloads' | 'catalog'>): AppCore {
  const { config, db } = core;
  return {
    ...core,
    maxItems: config.maxItems,
    maxRequestBytes: config.maxRequestBytes,
    maxPendingItemsPerOwner: config.maxPendingItemsPerOwner,
    publicUrl: config.publicUrl,
    bodies: createBodyBudget(config.bodyMemoryBytes),
    uploadTurns: createKeyedTurns(),
    readers: createReaderBudget({ capBytes: READER_BYTES, maxStreams: config.maxStreamsPerOwner }),
    batchUsage: (batchId) => batchUsage(db, batchId),
  };
}

function workerFactory(
  app: AppCore,
  pool: KeyPool,
  catalogCache: CatalogCache,
  periods: Periods,
): SharedParts['createWorker'] {
  const { config, db, clock, log, payloads, catalog } = app;
  const { flushMs, itemTimeoutMs, onWorkerLoss } = config;
  return (options) =>
    createWorker({
      ...options,
      db,
      store: payloads,
      pool,
      clock,
      log,
      flushMs,
      itemTimeoutMs,
      onWorkerLoss,
      periods,
      catalog,
      refreshCatalog: (version) => catalogCache.refreshIfNewer(version),
    });
}

function sweeperFactory(
  app: AppCore,
  compactor: Compactor,
  rescue: SharedParts['rescue'],
): SharedParts['createSweeper'] {
  const { config, db, clock, log, payloads } = app;
  const { retentionDays, usageRetentionDays } = config;
  return ({ instance, ...options }) =>
    createSweeper({
      ...options,
      db,
      store: payloads,
      clock,
      log,
      rescue: rescue(instance),
      retentionDays,
      usageRetentionDays,
      compact: compactor.compact,
      paused: compactor.paused,
      purge: async () => {
        await purgeLimits(db);
        await purgeExpiredTokens(db);
        await purgeExpiredFiles(db, payloads);
        await purgeValidationTurns(db);
        if (retentionDays > 0) while ((await deleteExpiredOpenaiBatches(db, retentionDays)) > 0);
      },
    });
}
