import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import { isDataError } from '../db/errors.ts';
import {
  closeBreaker,
  recordAuthFailure,
  recordBackoff,
  recordForbidden,
  recordRetryAfter,
  releaseProbe,
} from './keypool.sql.ts';

/** A change of a breaker that must reach Postgres. Times are local monotonic milliseconds. */
export type BreakerWrite =
  | { kind: 'close'; seenAt: number }
  | { kind: 'backoff'; startedAt: number; probeId: string | null; reason: 'server_error' | 'network' }
  | { kind: 'retry_after'; startedAt: number; probeId: string | null; seenAt: number; retryAfterMs: number }
  | { kind: 'auth' }
  | { kind: 'forbidden'; startedAt: number; model: string }
  | { kind: 'release'; probeId: string };

/** The changes of one replica on their way to Postgres. */
export interface WriteQueue {
  /** Queues a change and starts to write. */
  add(breakerKey: string, write: BreakerWrite): void;
  /** True while changes of the key are not yet in Postgres. */
  has(breakerKey: string): boolean;
  /** Drops the queued changes of a key. */
  drop(breakerKey: string): void;
  /** Resolves when everything that can be written is written. Starts again after a lost connection. */
  flush(): Promise<void>;
}

/**
 * Writes changes one after the other, in order for each key. Later changes of the same key are merged while they wait.
 * So a key that flaps costs as many writes as Postgres answers, not as it has calls. Changes that fail stay queued.
 */
export function createWriteQueue(options: { db: Db; log: Log; monotonic: () => number }): WriteQueue {
  const { db, log, monotonic } = options;
  const queued = new Map<string, BreakerWrite[]>();
  let writing: string | null = null;
  let running: Promise<void> | null = null;

  async function drain(): Promise<void> {
    try {
      for (let next = queued.entries().next(); !next.done; next = queued.entries().next()) {
        const [breakerKey, changes] = next.value;
        queued.delete(breakerKey);
        writing = breakerKey;
        const left = await write(breakerKey, changes);
        writing = null;
        if (left.length === 0) continue;
        queued.set(breakerKey, [...left, ...(queued.get(breakerKey) ?? [])]);
        return;
      }
    } finally {
      running = null; // in the same turn as the look at the queue: nothing is added in between
    }
  }

  /** Returns the changes that could not be written. */
  async function write(breakerKey: string, changes: readonly BreakerWrite[]): Promise<readonly BreakerWrite[]> {
    for (const [at, change] of changes.entries()) {
      try {
        await perform(db, breakerKey, change, monotonic());
      } catch (error) {
        const lost = isDataError(error);
        log.warn({ err: reasonOf(error), lost }, 'breaker state not written');
        if (!lost) return changes.slice(at);
      }
    }
    return [];
  }

  const flush = (): Promise<void> => {
    if (running === null && queued.size > 0) running = drain();
    return running ?? Promise.resolve();
  };

  return {
    add(breakerKey, write) {
      // A success overrides the failures before it. A 403 of a model does not concern the breaker.
      const before = (queued.get(breakerKey) ?? []).filter((one) => write.kind !== 'close' || one.kind === 'forbidden');
      queued.set(breakerKey, [...before, write]);
      void flush();
    },
    has: (breakerKey) => writing === breakerKey || queued.has(breakerKey),
    drop: (breakerKey) => void queued.delete(breakerKey),
    flush,
  };
}

function perform(db: Db, breakerKey: string, write: BreakerWrite, now: number): Promise<void> {
  switch (write.kind) {
    case 'close':
      return closeBreaker(db, breakerKey, now - write.seenAt);
    case 'backoff':
      return recordBackoff(db, { breakerKey, ageMs: now - write.startedAt, probeId: write.probeId }, write.reason);
    case 'retry_after': {
      const left = Math.max(0, write.retryAfterMs - (now - write.seenAt));
      return recordRetryAfter(db, { breakerKey, ageMs: now - write.startedAt, probeId: write.probeId }, left);
    }
    case 'auth':
      return recordAuthFailure(db, breakerKey);
    case 'forbidden':
      return recordForbidden(db, breakerKey, write.model, now - write.startedAt);
    case 'release':
      return releaseProbe(db, breakerKey, write.probeId);
  }
}
