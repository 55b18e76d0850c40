import type { Clock } from '../base/clock.ts';
import { ConfigError, reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { CatalogCache } from '../catalog/catalog-cache.ts';
import type { RenewingDatabase } from '../db/renewing-db.ts';
import { readVersionAndTime } from '../worker/sweep/wakeups.sql.ts';
import type { Part } from './part.ts';
import type { NotReady } from './readiness.ts';

/** The catalogue and the credentials in memory are at most this old when a request is answered. */
const FRESH_MS = 1000;

/** A component of the Lambda form: nothing waits there, so a start is one check, tried again with each invocation. */
export interface LambdaPart extends Pick<Part, 'name' | 'stop'> {
  /** Null when the part can be used, else the reason. Throws what is not known to be a lasting fault. */
  check?(): Promise<NotReady | null>;
}

export interface LambdaReadinessDeps {
  /** Their checks are made in this order until all have passed once. */
  parts: readonly LambdaPart[];
  db: RenewingDatabase;
  catalogCache: CatalogCache;
  clock: Clock;
  log: Log;
}

export interface LambdaReadiness {
  notReady(): NotReady | null;
  /** The database's clock, epoch ms, as of the last look. */
  dbNow(): number;
  /** Checks whether the service is ready, and what has changed since the last invocation. Never rejects. */
  prepare(): Promise<void>;
  /** The same; rejects when the service is not ready. */
  prepared(): Promise<void>;
}

/**
 * Readiness without a timer: each invocation looks itself.
 *
 *     starting ──all checks passed──► started: the catalogue follows its version, at most once a second
 *        ▲ │ a check failed             ▲ │ the database is unavailable
 *        └─┘                            └─┘
 *
 * After a failed look the answer is 503 until a later one succeeds.
 */
export function createLambdaReadiness({ parts, db, catalogCache, clock, log }: LambdaReadinessDeps): LambdaReadiness {
  let started = false;
  let notReady: NotReady | null = { code: 'not_ready', reason: 'starting' };
  let lookedAt = Number.NEGATIVE_INFINITY;
  let offsetMs = 0;

  const start = async (): Promise<NotReady | null> => {
    for (const part of parts) {
      const fault = (await part.check?.()) ?? null;
      if (fault !== null) return fault;
    }
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
  return {
    notReady: () => notReady,
    dbNow: () => clock.now() + offsetMs,
    prepare,
    async prepared() {
      await prepare();
      if (notReady !== null) throw new Error(notReady.reason);
    },
  };
}
