import type { TokenVerifier } from '../auth/authenticate.ts';
import { checkSigningKeys } from '../auth/signing-keys.ts';
import { purgeExpiredTokens } from '../auth/tokens.sql.ts';
import { createTokenVerifier } from '../auth/verify-token.ts';
import { type Clock, systemClock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { createCompactor, type ResultsWriters } from '../batch/results/compact.ts';
import { type CatalogCache, createCatalogCache } from '../catalog/catalog-cache.ts';
import { loadCatalog } from '../catalog/load.ts';
import { checkMasterKey } from '../catalog/rekey.ts';
import { createSecretBox, parseMasterKey, type SecretBox } from '../catalog/secret-box.ts';
import type { Database } from '../db/database.ts';
import { createKeyPool, type KeyPool } from '../keypool/pool.ts';
import { purgeLimits } from '../limits/purge.ts';
import type { Catalog } from '../model/catalog.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import { createStoreCheck } from '../payloads/store-check.ts';
import { writeMessageResults } from '../surfaces/anthropic/write-results.ts';
import { purgeExpiredFiles } from '../surfaces/files/remove-file.ts';
import { deleteExpiredOpenaiBatches } from '../surfaces/openai/openai-batches.sql.ts';
import { createValidator, type Validator } from '../surfaces/openai/validation/validator.ts';
import { writeOpenaiResults } from '../surfaces/openai/write-results.ts';
import type { UpstreamClient } from '../upstream/call-result.ts';
import { createUpstreamClient } from '../upstream/client.ts';
import { type BatchUsage, batchUsage } from '../usage/sums.ts';
import type { RescueDeps } from '../worker/lease/rescue.ts';
import { createSweeper, type SweepDeps, type Sweeper } from '../worker/sweep/sweep.ts';
import { createWorker, type Worker, type WorkerDeps } from '../worker/worker.ts';
import { type Env, openPayloads, openQueue, type Wakes } from './clients.ts';
import type { Config } from './config.ts';

/** How finished batches of the SDK surfaces are written; the native form is the compactor's own. */
export const RESULTS_WRITERS: ResultsWriters = { openai: writeOpenaiResults, anthropic: writeMessageResults };

const USER_AGENT = 'relay-batch/0.1';

/** What handlers find in the container and on Lambda alike. */
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
  /** Throws until a first catalogue was loaded. */
  catalog(): Catalog;
  batchUsage(batchId: string): Promise<BatchUsage>;
}

/** What a form of the service decides about its worker; the rest is the same in all. */
export type WorkerOptions = Pick<
  WorkerDeps,
  | 'client'
  | 'instance'
  | 'concurrency'
  | 'paused'
  | 'onRest'
  | 'onFinished'
  | 'onHeartbeat'
  | 'onFirstLease'
  | 'observe'
>;

/** What a form decides about its sweep. */
export type SweepOptions = Pick<SweepDeps, 'selfId' | 'mayRescue' | 'validate' | 'wake'> & { instance: string };

/** The parts that every form of the service is put together from. */
export interface Parts {
  app: AppCore;
  wakes: Wakes;
  pool: KeyPool;
  catalogCache: CatalogCache;
  secretBox: SecretBox | null;
  tokens: TokenVerifier;
  compactor: ReturnType<typeof createCompactor>;
  /** Of the OpenAI surface's batches. */
  validator: Validator;
  /** Null when the payload store is the one of this database, else why not. */
  checkStore(): Promise<string | null>;
  /** Throws ConfigError, with both fingerprints, when the master key is not the one that stored secrets need. */
  checkSecrets(): Promise<void>;
  rescue(instance: string): RescueDeps;
  /** A client of its own; whoever asks for it closes it. */
  createClient(): UpstreamClient;
  createWorker(options: WorkerOptions): Worker;
  /** Sweeps on its own timer until it is stopped. */
  createSweeper(options: SweepOptions): Sweeper;
}

export interface PartsOptions {
  config: Config;
  env: Env;
  log: Log;
  db: Database;
  /** Base64; null: nothing stored is encrypted. */
  masterKey: string | null;
}

/**
 * Builds what the container form (app.ts), the Lambda form (app-lambda.ts) and the command line have in common, from the
 * configuration and a database. Throws ConfigError. Connects to nothing, starts nothing.
 */
export async function createParts({ config, env, log, db, masterKey }: PartsOptions): Promise<Parts> {
  const clock = systemClock;
  const { itemTimeoutMs, onWorkerLoss } = config;
  const secretBox = masterKey === null ? null : createSecretBox(parseMasterKey(masterKey));
  const payloads = await openPayloads(config, env);
  const wakes = await openQueue(config, env, db);
  const pool = createKeyPool({ db, log, clock, probeLeaseMs: itemTimeoutMs });
  const catalogCache = createCatalogCache({ load: () => loadCatalog(db, env, secretBox, log), log });
  const compactor = createCompactor({ db, payloads, clock, log }, RESULTS_WRITERS);
  const { maxPendingItemsPerOwner, retentionDays } = config;
  const checkStore = createStoreCheck(db, payloads);
  const validator = createValidator({ db, payloads, clock, log, queue: wakes, maxPendingItemsPerOwner, checkStore });
  const rescue = (instance: string): RescueDeps => ({ db, log, instance, onWorkerLoss });
  const store = payloads;

  return {
    app: {
      config,
      log,
      clock,
      db,
      payloads,
      maxItems: config.maxItems,
      maxRequestBytes: config.maxRequestBytes,
      maxPendingItemsPerOwner,
      publicUrl: config.publicUrl,
      catalog: () => catalogCache.current(),
      batchUsage: (batchId) => batchUsage(db, batchId),
    },
    wakes,
    pool,
    catalogCache,
    secretBox,
    tokens: createTokenVerifier({ db, box: secretBox, log, monotonic: clock.monotonic }),
    compactor,
    validator,
    checkStore,
    async checkSecrets() {
      await checkMasterKey(db, secretBox);
      await checkSigningKeys(db, secretBox);
    },
    rescue,
    createClient: () =>
      createUpstreamClient({ connections: Math.max(1, config.concurrency), userAgent: USER_AGENT, clock }),
    createWorker: (options) =>
      createWorker({
        ...options,
        db,
        store,
        pool,
        clock,
        log,
        flushMs: config.flushMs,
        itemTimeoutMs,
        onWorkerLoss,
        catalog: () => catalogCache.current(),
        refreshCatalog: (version) => catalogCache.refreshIfNewer(version),
      }),
    createSweeper: ({ instance, ...options }) =>
      createSweeper({
        ...options,
        db,
        store,
        clock,
        log,
        rescue: rescue(instance),
        retentionDays,
        usageRetentionDays: config.usageRetentionDays,
        compact: (ids) => compactor.compact(ids),
        paused: compactor.paused,
        purge: async () => {
          await purgeLimits(db);
          await purgeExpiredTokens(db);
          await purgeExpiredFiles(db, payloads);
          if (retentionDays > 0) while ((await deleteExpiredOpenaiBatches(db, retentionDays)) > 0);
        },
      }),
  };
}
