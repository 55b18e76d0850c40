import type { SQSBatchResponse, SQSEvent } from 'aws-lambda';
import type { Log } from '../base/log.ts';
import { createDb, type Database } from '../db/database.ts';
import type { Wake } from '../queue/queue.ts';
import type { UpstreamClient } from '../upstream/call-result.ts';
import type { Periods } from '../worker/periods.ts';
import type { Env } from './clients.ts';
import type { Config } from './config.ts';
import { type Home, settle } from './home.ts';
import { createLocalWorker, type LocalWorker } from './local-worker.ts';
import { createMetrics, type Metrics } from './metrics.ts';
import { createReplica, type Replica } from './replica.ts';
import { createSharedParts, type SharedParts } from './shared-parts.ts';

export interface AppOptions {
  config: Config;
  /** Of worker and lease; tests pass shorter ones than the service's. */
  periods?: Periods | undefined;
  /** The inference port's address, once it is listened on; null while callers cannot use it. */
  listenUrl(): string | null;
  env: Env;
  log: Log;
  /** Receives each wake-up from the queue: in the container the worker handler. */
  onWake(app: WakeTarget, wake: Wake): void;
  /** The same for SQS messages (RELAY_QUEUE=sqs). */
  onMessages(app: WakeTarget, event: SQSEvent): Promise<SQSBatchResponse>;
}

/** The parts that the worker handler works on. */
export interface WakeTarget {
  log: Log;
  wake(wake: Wake): void;
}

/** The basis that the parts of the container are built from. Only an embedded Postgres runs already. */
export interface Foundation {
  options: AppOptions;
  home: Home;
  worker: LocalWorker;
  database: ContainerDatabase;
  shared: SharedParts;
  client: UpstreamClient;
  metrics: Metrics;
  replica: Replica;
  /** Aborts when the service stops. */
  stopping: AbortSignal;
}

/** Builds what the container stands on, each from what exists already. Throws ConfigError. */
export async function layFoundation(options: AppOptions, stopping: AbortSignal): Promise<Foundation> {
  const { config, env, log, periods } = options;
  const home = await settle(config, log);
  const worker = createLocalWorker();
  const database = openDatabase(home.dsn, config, log, worker.heartbeatNow);
  const shared = await createSharedParts({ config, env, log, db: database.db, masterKey: home.masterKey, periods });
  return {
    options,
    home,
    worker,
    database,
    shared,
    client: shared.createClient(),
    metrics: createMetrics({
      bodies: shared.app.bodies.held,
      running: () => worker.figures().running,
      waiting: () => worker.figures().waiting,
      committing: () => worker.figures().committing,
    }),
    replica: createReplica(home.directDsn, home.instance, log),
    stopping,
  };
}

interface ContainerDatabase {
  db: Database;
  /** False from the first statement that could not be sent until one could. */
  isUp(): boolean;
}

function openDatabase(dsn: string, config: Config, log: Log, onDown: () => void): ContainerDatabase {
  let isUp = true;
  const db = createDb({
    dsn,
    max: config.pgPool,
    prepared: config.pgPrepared,
    applicationName: 'relay-batch',
    log,
    onState(up) {
      // Looked at again at once: one broken connection of the pool is not an outage.
      if (!up && isUp) onDown();
      isUp = up;
    },
  });
  return { db, isUp: () => isUp };
}
