import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import { isDataError } from '../db/errors.ts';
import {
  closeBreaker,
  recordAccountFailure,
  recordAuthFailure,
  recordFailures,
  recordForbidden,
  recordProbeFailure,
  recordRetryAfter,
  releaseProbe,
} from './breakers.sql.ts';
import { type Failure, mergeFailures } from './failures.ts';

/** A change of a breaker that must reach Postgres. Times are local monotonic milliseconds. */
export type BreakerWrite =
  | { kind: 'close'; model: string; seenAt: number; probeId: string | null }
  | { kind: 'failures'; model: string; reason: 'server_error' | 'network'; owner: string; failures: readonly Failure[] }
  | {
      kind: 'probe_failure';
      model: string;
      reason: 'server_error' | 'network';
      owner: string;
      probeId: string;
    }
  | {
      kind: 'retry_after';
      startedAt: number;
      probeId: string | null;
      owner: string;
      seenAt: number;
      retryAfterMs: number;
    }
  | { kind: 'account'; startedAt: number; probeId: string | null; owner: string }
  | { kind: 'auth' }
  | { kind: 'forbidden'; startedAt: number; probeId: string | null; model: string }
  | { kind: 'release'; probeId: string; owner: string };

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
      const before = (queued.get(breakerKey) ?? []).filter((one) => !overrides(write, one));
      const at = write.kind === 'failures' ? before.findIndex((one) => isSameModel(write, one)) : -1;
      // A queue that waits for Postgres holds one list of failures for each (key, model), however many items fail.
      if (at >= 0) before[at] = joinFailures(before[at] as Failures, write as Failures);
      else before.push(write);
      queued.set(breakerKey, before);
      void flush();
    },
    has: (breakerKey) => writing === breakerKey || queued.has(breakerKey),
    drop: (breakerKey) => void queued.delete(breakerKey),
    flush,
  };
}

type Failures = Extract<BreakerWrite, { kind: 'failures' }>;

function isSameModel(write: Failures, before: BreakerWrite): boolean {
  return before.kind === 'failures' && before.model === write.model;
}

function joinFailures(before: Failures, write: Failures): Failures {
  return { ...write, failures: mergeFailures(before.failures, write.failures) };
}

/** A success overrides the failures of its model, and what made the key wait. A 401, a 403 and no credit stay. */
function overrides(write: BreakerWrite, before: BreakerWrite): boolean {
  if (write.kind !== 'close') return false;
  if (before.kind === 'retry_after') return true;
  return (
    (before.kind === 'failures' || before.kind === 'probe_failure' || before.kind === 'close') &&
    before.model === write.model
  );
}

function perform(db: Db, breakerKey: string, write: BreakerWrite, now: number): Promise<void> {
  switch (write.kind) {
    case 'close':
      return closeBreaker(db, { breakerKey, ageMs: now - write.seenAt, probeId: write.probeId }, write.model);
    case 'failures': {
      const { model, reason, owner } = write;
      const failures = write.failures.map((one) => ({ ...one, at: now - one.at }));
      return recordFailures(db, { breakerKey, model, reason, owner, failures });
    }
    case 'probe_failure':
      return recordProbeFailure(db, { breakerKey, ...write }, write.model, write.reason);
    case 'retry_after': {
      const left = Math.max(0, write.retryAfterMs - (now - write.seenAt));
      return recordRetryAfter(db, failedCall(breakerKey, write, now), left);
    }
    case 'account':
      return recordAccountFailure(db, failedCall(breakerKey, write, now));
    case 'auth':
      return recordAuthFailure(db, breakerKey);
    case 'forbidden':
      return recordForbidden(db, { breakerKey, ageMs: now - write.startedAt, probeId: write.probeId }, write.model);
    case 'release':
      return releaseProbe(db, breakerKey, write.probeId, write.owner);
  }
}

function failedCall(
  breakerKey: string,
  write: { startedAt: number; probeId: string | null; owner: string },
  now: number,
) {
  return { breakerKey, ageMs: now - write.startedAt, probeId: write.probeId, owner: write.owner };
}
