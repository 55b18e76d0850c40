import { authenticate, type Caller, type Headers } from '../auth/authenticate.ts';
import { systemClock, uuidv7 } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { ProgressDeps } from '../batch/progress.ts';
import { createDb } from '../db/database.ts';
import { expectedVersion, isSchemaCurrent } from '../db/migrate.ts';
import { createRenewingDb, type RenewingDatabase } from '../db/renewing-db.ts';
import type { Wake, WakeQueue } from '../queue/queue.ts';
import type { Env, Wakes } from './clients.ts';
import type { Config } from './config.ts';
import { createLambdaReadiness, type LambdaPart } from './lambda-readiness.ts';
import { type InvocationDeps, type SweepOnceOptions, sweepOnce, workOnce } from './lambda-work.ts';
import { stopParts } from './part.ts';
import type { NotReady } from './readiness.ts';
import { type AppCore, createSharedParts, type SharedParts } from './shared-parts.ts';

/** A connection unused for so long may have been dropped while the process was frozen. */
const MAX_IDLE_MS = 30_000;
/**
 * The queue's own visibility is longer than its messages live: without this a failed message would never be delivered
 * again.
 */
const RETRY_SECONDS = 60;

/** The parts of the handlers on Lambda: everything that can live between two invocations, and no timer. */
export interface LambdaApp extends AppCore, ProgressDeps {
  db: RenewingDatabase;
  queue: WakeQueue;
  instance: string;
  notReady(): NotReady | null;
  authenticate(headers: Headers): Promise<Caller>;
  abortHere(batchId: string): void;
  /** Writes the results of finished batches; resolves when that is done, or put off. */
  compact(batchIds: readonly string[]): Promise<void>;
  /** A batch of the OpenAI surface waits for its validation, which the next worker invocation does. */
  wakeValidator(): Promise<void>;
  /** To be called before each invocation: checks whether the service is ready, and what has changed. Never rejects. */
  prepare(): Promise<void>;
  /** Works until nothing is left to do or the time runs out; rejects when the database cannot be reached. */
  wake(wake: Wake, remainingMs: () => number): Promise<void>;
  /** A wake-up failed: its message is delivered again in a minute. */
  failed(receiptHandle: string): Promise<void>;
  sweep(options: SweepOnceOptions): Promise<void>;
  /** For tests: a Lambda container just ends. */
  close(): Promise<void>;
}

export interface LambdaOptions {
  config: Config;
  env: Env;
  log: Log;
  /** The folder of the numbered SQL files. Only their names are read, never their SQL. */
  migrations: string;
}

/**
 * Builds the service in its Lambda form, once a container: one database connection, no migrations (503
 * `schema_outdated` until they were run), no listener, no server, nothing that runs between invocations. Throws
 * ConfigError.
 */
export async function createLambdaApp({ config, env, log, migrations }: LambdaOptions): Promise<LambdaApp> {
  const db = openDatabase(config, log);
  const shared = await createSharedParts({ config, env, log, db, masterKey: config.masterKey });
  const { wakes: queue, catalogCache, tokens, compactor } = shared;
  const parts = lambdaParts(shared, db, await expectedVersion(migrations));
  const readiness = createLambdaReadiness({ parts, db, catalogCache, clock: shared.app.clock, log });
  // The log stream is the container's own: its next invocation takes back at once what a killed one left.
  const instance = config.instanceId ?? (env.AWS_LAMBDA_LOG_STREAM_NAME || uuidv7());
  const sendWakes = wakesSender(queue, log);
  const invocation: InvocationDeps = { shared, instance, sendWakes };
  return {
    ...shared.app,
    db,
    queue,
    instance,
    notReady: readiness.notReady,
    authenticate: (headers) => authenticate(headers, catalogCache.current(), { nowMs: readiness.dbNow(), tokens }),
    abortHere() {}, // running items are other containers': they hear of a cancel with their next heartbeat
    workers: { leaseSeconds: shared.periods.leaseSeconds, onLambda: true },
    compact: compactor.compact,
    wakeValidator: () => sendWakes(1),
    prepare: readiness.prepare,
    async wake(wake, remainingMs) {
      if (wake.kind !== 'work') return;
      await readiness.prepared();
      await workOnce(invocation, remainingMs);
    },
    failed: (receiptHandle) =>
      queue.comeBack(receiptHandle, RETRY_SECONDS).catch((error) => {
        log.warn({ err: reasonOf(error) }, 'a failed wake-up comes back only when its visibility ends');
      }),
    async sweep(options) {
      await readiness.prepared();
      await sweepOnce(invocation, options);
    },
    close: () => stopParts(parts, 0, log),
  };
}

function openDatabase({ pgDsn, pgPrepared }: Config, log: Log): RenewingDatabase {
  if (pgDsn === null) throw new ConfigError('RELAY_PG_DSN is missing: there is no embedded Postgres on Lambda');
  const open = () =>
    createDb({ dsn: pgDsn, max: 1, prepared: pgPrepared, applicationName: 'relay-batch lambda', log, idleMs: 0 });
  return createRenewingDb(open, systemClock.now, MAX_IDLE_MS);
}

/** The parts in the order in which they are checked; `schema` is the version that this release needs. */
function lambdaParts(
  shared: SharedParts,
  db: RenewingDatabase,
  schema: Awaited<ReturnType<typeof expectedVersion>>,
): LambdaPart[] {
  return [
    {
      name: 'database',
      async check() {
        if (await isSchemaCurrent(db, schema)) return null;
        return { code: 'schema_outdated', reason: 'database schema is outdated: run relay-batch migrate' };
      },
      stop: { phase: 'database', run: db.close },
    },
    {
      name: 'payload store',
      async check() {
        const reason = await shared.checkStore();
        return reason === null ? null : { code: 'not_ready', reason };
      },
      stop: { phase: 'connections', run: shared.app.payloads.close },
    },
    {
      name: 'secrets',
      async check() {
        await shared.checkSecrets();
        return null;
      },
    },
    { name: 'wake-ups', stop: { phase: 'connections', run: shared.wakes.close } },
  ];
}

/** The fall-back of a wake-up that is not sent is the sweep's next one. */
function wakesSender(queue: Wakes, log: Log): InvocationDeps['sendWakes'] {
  return async (count) => {
    await queue.send({ kind: 'work' }, count).catch((error) => {
      log.warn({ err: reasonOf(error) }, 'could not wake the workers');
    });
  };
}
