import { type Clock, uuidv7 } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { HostKey } from '../model/catalog.ts';
import type { Candidate, RoutePlan } from '../routing/plan.ts';
import type { CallClass, CallResult } from '../upstream/call-result.ts';
import { BREAKER_EFFECTS, MAX_RETRY_AFTER_MS } from './breaker.ts';
import { createBreakerCache, type KeyHealth, PROBE_RETRY_MS } from './breaker-cache.ts';
import { drawForClaim, orderKeys, type Turn } from './draw.ts';
import { resetKey } from './health.ts';
import { readBreakers, takeProbe } from './keypool.sql.ts';
import { createWriteQueue } from './writes.ts';

export interface KeyPoolOptions {
  db: Db;
  log: Log;
  clock: Clock;
  /** The time after which a half-open breaker lets another probe through: the time limit of an item. */
  probeLeaseMs: number;
  /** Reports a breaker that a call of this replica opened or closed, for metrics. */
  onChange?: (change: { hostKey: string; class: CallClass }) => void;
}

/** The pool draws keys and keeps their breakers, which all replicas share through Postgres. */
export interface KeyPool {
  /** Reads the breakers of all replicas. Concurrent calls share one read. A failure is logged and changes nothing. */
  refresh(): Promise<void>;
  /** `refresh`, unless the last one is at most `maxAgeMs` old (1,000). For use before a claim, and by a timer. */
  ensureFresh(maxAgeMs?: number): Promise<void>;
  /** Returns the turns for the items of a claim, in their order. No query if no policy among them takes turns. */
  drawTurns(plans: readonly RoutePlan[]): Promise<(Turn | null)[]>;
  /** Returns the keys of a candidate to try, in order, without open ones. A `half_open` one needs `tryProbe` first. */
  order(candidate: Candidate, plan: RoutePlan, turn: Turn | null): readonly HostKey[];
  health(key: HostKey, model: string): KeyHealth;
  /**
   * Takes the one probe of a half-open key; null if another call has it. The probe ends with `report`, or with
   * `releaseProbe` if no call was made.
   */
  tryProbe(key: HostKey): Promise<string | null>;
  releaseProbe(key: HostKey, probeId: string): void;
  /** Records an outcome: here at once, in Postgres soon after. `probeId` is set if the call was a probe. */
  report(
    key: HostKey,
    model: string,
    result: Pick<CallResult, 'class' | 'startedAt' | 'retryAfterMs'>,
    probeId: string | null,
  ): void;
  /**
   * Returns the milliseconds until the first key of any candidate may be drawn: 0 if one may now; null if none ever
   * will by itself. An item that found no key waits this long, if its time limit allows it.
   */
  reopensInMs(plan: RoutePlan): number | null;
  /** Closes a key's breaker and wakes its resting models, for all replicas (they see it within a second). */
  reset(key: HostKey): Promise<void>;
  /** Writes what is not yet in Postgres. Call it before the process ends. */
  flush(): Promise<void>;
}

/** Makes a pool over shared breakers. It has no timer and sends Postgres nothing by itself. */
export function createKeyPool(options: KeyPoolOptions): KeyPool {
  const { db, log, clock } = options;
  const breakers = createBreakerCache();
  const writes = createWriteQueue({ db, log, monotonic: clock.monotonic });
  let readAt = Number.NEGATIVE_INFINITY;
  let reading: Promise<void> | null = null;

  const usable = (keys: readonly HostKey[], model: string): readonly HostKey[] => {
    const now = clock.monotonic();
    const mayDraw = (key: HostKey) => breakers.reopensIn(key, model, now) === 0;
    return keys.every(mayDraw) ? keys : keys.filter(mayDraw);
  };

  async function read(): Promise<void> {
    const mark = breakers.mark();
    try {
      await writes.flush();
      const rows = await readBreakers(db);
      readAt = clock.monotonic();
      breakers.replace(rows, readAt, mark, writes.has);
    } catch (error) {
      log.warn({ err: reasonOf(error) }, 'breaker state not read');
    }
  }

  const refresh = (): Promise<void> => {
    reading ??= read().finally(() => {
      reading = null;
    });
    return reading;
  };

  const pool: KeyPool = {
    refresh,
    ensureFresh: (maxAgeMs = 1_000) => (clock.monotonic() - readAt <= maxAgeMs ? Promise.resolve() : refresh()),
    drawTurns: (plans) =>
      drawForClaim({ db, log, usable: (plan) => usable(plan.candidates[0]!.keys, plan.model.name) }, plans),
    order: (candidate, plan, turn) =>
      orderKeys(usable(candidate.keys, plan.model.name), plan.policy.keySelection, turn),
    health: (key, model) => breakers.health(key, model, clock.monotonic()),

    async tryProbe(key) {
      const probeId = uuidv7(clock.now());
      // From now on this replica does not request it again, whatever Postgres answers.
      breakers.setProbe(key.breakerKey, clock.monotonic() + PROBE_RETRY_MS);
      try {
        if (await takeProbe(db, key.breakerKey, probeId, options.probeLeaseMs)) {
          breakers.setProbe(key.breakerKey, clock.monotonic() + options.probeLeaseMs);
          return probeId;
        }
      } catch (error) {
        log.warn({ err: reasonOf(error) }, 'probe of a breaker not taken');
        return null;
      }
      void refresh(); // another replica has it, or has closed the breaker
      return null;
    },

    releaseProbe(key, probeId) {
      breakers.setProbe(key.breakerKey, 0);
      writes.add(key.breakerKey, { kind: 'release', probeId });
    },

    report(key, model, result, probeId) {
      if (key.breakerKey === '') return;
      const effect = BREAKER_EFFECTS[result.class];
      const harmless = effect === 'close' || effect === 'none';
      if (harmless && probeId === null && !breakers.knows(key.breakerKey)) return;
      const now = clock.monotonic();
      const startedAt = now - Math.max(0, clock.now() - result.startedAt);
      const changed = () => options.onChange?.({ hostKey: key.name, class: result.class });
      if (effect === 'forbidden' && breakers.forbid(key.breakerKey, model, startedAt, now)) {
        writes.add(key.breakerKey, { kind: 'forbidden', startedAt, model });
        changed();
      }
      const event = { class: result.class, startedAt, retryAfterMs: result.retryAfterMs, probe: probeId !== null };
      if (breakers.apply(key.breakerKey, event, now)) {
        const retryAfterMs = Math.min(result.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
        if (effect === 'close') writes.add(key.breakerKey, { kind: 'close', seenAt: now });
        if (effect === 'auth') writes.add(key.breakerKey, { kind: 'auth' });
        if (effect === 'retry_after') {
          writes.add(key.breakerKey, { kind: 'retry_after', startedAt, probeId, seenAt: now, retryAfterMs });
        }
        if (effect === 'backoff') {
          const reason = result.class === 'network' ? 'network' : 'server_error';
          writes.add(key.breakerKey, { kind: 'backoff', startedAt, probeId, reason });
        }
        changed();
      } else if (probeId !== null) {
        pool.releaseProbe(key, probeId);
      }
    },

    reopensInMs(plan) {
      const now = clock.monotonic();
      let first = Number.POSITIVE_INFINITY;
      for (const { keys } of plan.candidates) {
        for (const key of keys) first = Math.min(first, breakers.reopensIn(key, plan.model.name, now));
      }
      return first === Number.POSITIVE_INFINITY ? null : Math.ceil(first);
    },

    async reset(key) {
      writes.drop(key.breakerKey);
      await resetKey(db, key);
      breakers.forget(key.breakerKey);
    },
    flush: writes.flush,
  };
  return pool;
}
