import { authenticate, type Caller, type Headers } from '../auth/authenticate.ts';
import { systemClock, uuidv7 } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { createDb } from '../db/database.ts';
import { expectedVersion, isSchemaCurrent } from '../db/migrate.ts';
import { createRenewingDb, type RenewingDatabase } from '../db/renewing-db.ts';
import type { Wake, WakeQueue } from '../queue/queue.ts';
import { type InvocationHooks, runInvocation } from '../worker/invocation.ts';
import { takeBackFormer } from '../worker/lease/rescue.ts';
import { readDemand, readVersionAndTime } from '../worker/sweep/wakeups.sql.ts';
import type { Worker } from '../worker/worker.ts';
import type { Env } from './clients.ts';
import type { Config } from './config.ts';
import { type AppCore, createParts } from './parts.ts';
import type { NotReady } from './readiness.ts';

/** A connection unused for so long may have been dropped while the process was frozen. */
const MAX_IDLE_MS = 30_000;
/** What is known of catalogue and credentials is at most this old when a request is answered. */
const FRESH_MS = 1000;
/** Workers that run at once (reserved concurrency): more wake-ups would only wait. */
const MAX_WORKERS = 8;
/** The queue's own visibility is longer than its messages live: without this a failed one would never come back. */
const RETRY_SECONDS = 60;
/** A compaction is begun with so much left; else the sweep does it. */
const COMPACT_MS = 60_000;

/** What the handlers are made of on Lambda: everything that can live between two invocations, and no timer. */
export interface LambdaApp extends AppCore {
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
  /** To be called before each invocation: looks whether the service is ready, and what has changed. Never rejects. */
  prepare(): Promise<void>;
  /** Works until there is nothing to do or the time runs out; rejects when the database is away. */
  wake(wake: Wake, remainingMs: () => number): Promise<void>;
  /** A wake-up failed: its message comes back in a minute. */
  failed(receiptHandle: string): Promise<void>;
  sweep(options: { housekeep: boolean; remainingMs: () => number }): Promise<void>;
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
 * `schema_outdated` until they were run), no listener, no server, nothing that runs between invocations. Throws ConfigError.
 */
export async function createLambdaApp({ config, env, log, migrations }: LambdaOptions): Promise<LambdaApp> {
  const { pgDsn } = config;
  if (pgDsn === null) throw new ConfigError('RELAY_PG_DSN is missing: there is no embedded Postgres on Lambda');
  const clock = systemClock;
  // The log stream is the container's own: its next invocation takes back at once what a killed one left.
  const instance = config.instanceId ?? (env.AWS_LAMBDA_LOG_STREAM_NAME || uuidv7());
  const open = () =>
    createDb({
      dsn: pgDsn,
      max: 1,
      prepared: config.pgPrepared,
      applicationName: 'relay-batch lambda',
      log,
      idleMs: 0,
    });
  const db = createRenewingDb(open, clock.now, MAX_IDLE_MS);
  const parts = await createParts({ config, env, log, db, masterKey: config.masterKey });
  const { wakes: queue, pool, catalogCache, tokens, compactor, validator } = parts;
  const schema = await expectedVersion(migrations);

  let started = false;
  let notReady: NotReady | null = { code: 'not_ready', reason: 'starting' };
  let lookedAt = Number.NEGATIVE_INFINITY;
  let offsetMs = 0;

  const start = async (): Promise<NotReady | null> => {
    if (!(await isSchemaCurrent(db, schema))) {
      return { code: 'schema_outdated', reason: 'database schema is outdated: run relay-batch migrate' };
    }
    const store = await parts.checkStore();
    if (store !== null) return { code: 'not_ready', reason: store };
    await parts.checkSecrets();
    started = true;
    return null;
  };
  const look = async (): Promise<NotReady | null> => {
    const unready = started ? null : await start();
    if (unready !== null) return unready;
    const { version, nowMs } = await readVersionAndTime(db);
    offsetMs = nowMs - clock.now();
    await catalogCache.refreshIfNewer(version);
    catalogCache.current(); // throws until a first one was loaded
    return null;
  };
  const prepare = async (): Promise<void> => {
    if (notReady === null && clock.now() - lookedAt < FRESH_MS) return;
    db.renew();
    try {
      notReady = await look();
      if (notReady !== null) log.warn({ reason: notReady.reason }, 'not ready');
      lookedAt = clock.now();
    } catch (error) {
      const reason = error instanceof ConfigError ? error.message : 'waiting for the database and the payload store';
      notReady = { code: 'not_ready', reason };
      log.error({ err: reasonOf(error) }, 'not ready');
    }
  };
  const prepared = async (): Promise<void> => {
    await prepare();
    if (notReady !== null) throw new Error(notReady.reason);
  };

  /** The fall-back of a wake-up that is not sent is the sweep's next one. */
  const sendWakes = async (count: number): Promise<void> => {
    await queue.send({ kind: 'work' }, count).catch((error) => {
      log.warn({ err: reasonOf(error) }, 'could not wake the workers');
    });
  };

  const work = async (remainingMs: () => number): Promise<void> => {
    await prepared();
    await validator.run(remainingMs);
    await pool.ensureFresh();
    // Its own in each invocation: connections that were frozen look alive, and their end would open a key's breaker.
    const client = parts.createClient();
    const finished: string[] = [];
    let handled = 0;
    const count = (n: number) => {
      handled += n;
    };
    const startWorker = (hooks: InvocationHooks): Worker =>
      parts.createWorker({
        ...hooks,
        client,
        instance,
        concurrency: Math.max(1, config.concurrency),
        onFinished: (ids) => void finished.push(...ids),
        onHeartbeat() {},
        onFirstLease: async (workerId) =>
          void finished.push(...(await takeBackFormer(parts.rescue(instance), workerId)).finished),
        observe: { claim() {}, flush() {}, final: (_, n) => count(n), released: count, upstream() {} },
      });
    try {
      await runInvocation({ remainingMs, itemTimeoutMs: config.itemTimeoutMs, startWorker });
    } finally {
      await client.close();
    }
    // One that found nothing sends nothing: what is due then is not for it to claim, and it would go round for ever.
    if (handled > 0 && (await readDemand(db, 1)).due > 0) await sendWakes(1);
    if (finished.length > 0 && remainingMs() > COMPACT_MS) await compactor.compact(finished);
    log.info({ handled, remainingMs: remainingMs() }, 'invocation done');
  };

  return {
    ...parts.app,
    db,
    queue,
    instance,
    notReady: () => notReady,
    authenticate: (headers) => authenticate(headers, catalogCache.current(), { nowMs: clock.now() + offsetMs, tokens }),
    abortHere() {}, // running items are other containers': they hear of a cancel with their next heartbeat
    compact: compactor.compact,
    wakeValidator: () => sendWakes(1),
    prepare,
    wake: (wake, remainingMs) => (wake.kind === 'work' ? work(remainingMs) : Promise.resolve()),
    failed: (receiptHandle) =>
      queue.comeBack(receiptHandle, RETRY_SECONDS).catch((error) => {
        log.warn({ err: reasonOf(error) }, 'a failed wake-up comes back only when its visibility ends');
      }),
    async sweep({ housekeep, remainingMs }) {
      await prepared();
      const selfId = uuidv7();
      const sweeper = parts.createSweeper({
        instance,
        selfId: () => selfId,
        mayRescue: () => true,
        validate: async () => void (await validator.run(remainingMs)),
        wake() {},
      });
      const none = { alive: true, catalogVersion: 0, nowMs: 0, cancelled: [], workDue: false };
      try {
        await sweeper.onHeartbeat({
          ...none,
          rescueDue: true,
          expiryDue: true,
          compactionDue: false,
          validationDue: false,
        });
        // Before the slow part: a validation or compaction that outlives this invocation must not cost the wake-ups.
        const { due, workers } = await readDemand(db, MAX_WORKERS);
        if (due > workers) await sendWakes(due - workers);
        await sweeper.onHeartbeat({
          ...none,
          rescueDue: false,
          expiryDue: false,
          compactionDue: true,
          validationDue: true,
        });
        if (housekeep) await sweeper.housekeep();
      } finally {
        await sweeper.stop();
        await compactor.compact([]); // the sweeper only sets it going, and what goes on after a return stands still
      }
    },
    async close() {
      queue.close();
      await parts.app.payloads.close();
      await db.close();
    },
  };
}
