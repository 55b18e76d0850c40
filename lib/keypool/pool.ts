import { type Clock, uuidv7 } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { HostKey } from '../model/catalog.ts';
import type { Candidate, RoutePlan } from '../routing/plan.ts';
import type { CallClass, CallResult } from '../upstream/call-result.ts';
import { BREAKER_EFFECTS, type BreakerReason, MAX_RETRY_AFTER_MS } from './breaker.ts';
import { createBreakerCache, type KeyHealth, PROBE_RETRY_MS, type ReadBreaker } from './breaker-cache.ts';
import { type BreakerRow, readBreakers, releaseProbe, takeProbe, wakeWaiting } from './breakers.sql.ts';
import { drawForClaim, orderKeys, type Turn } from './draw.ts';
import { createCallLog, parseFailures } from './failures.ts';
import { resetKey } from './health.ts';
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

/** The item that calls, as far as breakers are concerned. */
export interface Caller {
  batchId: string;
  idx: number;
  owner: string;
  /** It failed on two keys: what it does later trips no breaker of a model. */
  suspect: boolean;
}

/** The probe of a half-open breaker: of the key's own, of the model's, or of both. */
export interface Probe {
  id: string;
  owner: string;
  key: boolean;
  model: boolean;
}

/** When the first key of any candidate may be drawn, and what stands in the way until then. */
export interface Reopening {
  /** Milliseconds; 0 if one may be drawn now, null if none ever will by itself. */
  inMs: number | null;
  /** The reason of the breaker that ends first; null if a key may be drawn now. */
  reason: BreakerReason | null;
  /** The name of the key of that breaker. */
  hostKey: string | null;
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
  order(candidate: Candidate, plan: RoutePlan, turn: Turn | null, owner: string): readonly HostKey[];
  health(key: HostKey, model: string, owner: string): KeyHealth;
  /**
   * Takes the one probe of a half-open key; null if another call has it. The probe ends with `report`, or with
   * `releaseProbe` if no call was made.
   */
  tryProbe(key: HostKey, model: string, owner: string): Promise<Probe | null>;
  releaseProbe(key: HostKey, model: string, probe: Probe): void;
  /** Notes that a call is sent now. */
  calling(key: HostKey, model: string, batchId: string): void;
  /** Records an outcome: here at once, in Postgres soon after. `probe` is set if the call was one. */
  report(
    key: HostKey,
    model: string,
    caller: Caller,
    result: Pick<CallResult, 'class' | 'startedAt' | 'retryAfterMs'>,
    probe: Probe | null,
  ): void;
  /** An item that found no key waits this long, if its time limit allows it. */
  reopening(plan: RoutePlan, owner: string): Reopening;
  /** There is a new value of a key: items that wait for breakers look again at once. A failure is logged. */
  wakeWaiting(): Promise<void>;
  /** Closes the breakers of a key, for all replicas (they see it within a second). Waiting items look again at once. */
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

  const calls = createCallLog();

  // Without an owner: as everybody sees it whose turn it is.
  const usable = (keys: readonly HostKey[], model: string, owner = ''): readonly HostKey[] => {
    const now = clock.monotonic();
    const mayDraw = (key: HostKey) => breakers.reopensIn(key, model, owner, now) === 0;
    return keys.every(mayDraw) ? keys : keys.filter(mayDraw);
  };

  async function read(): Promise<void> {
    const mark = breakers.mark();
    try {
      await writes.flush();
      const rows = await readBreakers(db);
      readAt = clock.monotonic();
      // Failures of other replicas do not count if a success of this one came after them.
      const seen = rows.map((row): ReadBreaker => {
        const { breaker_key: breakerKey, model } = row;
        const failures = parseFailures(row.failures, readAt);
        return { ...row, failures: failures.filter(({ at }) => at > calls.lastSuccess(breakerKey, model)) };
      });
      breakers.replace(seen, readAt, mark, writes.has);
      for (const [i, row] of rows.entries()) {
        if (row.reason === null && parseFailures(row.failures, readAt).length > seen[i]!.failures.length)
          tellSuccess(row);
      }
    } catch (error) {
      log.warn({ err: reasonOf(error) }, 'breaker state not read');
    }
  }

  /** A success cost no statement when it came: only now Postgres has failures before it. */
  function tellSuccess({ breaker_key: breakerKey, model }: BreakerRow): void {
    const seenAt = calls.lastSuccess(breakerKey, model);
    writes.add(breakerKey, { kind: 'close', model, seenAt, probeId: null });
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
    order: (candidate, plan, turn, owner) =>
      orderKeys(usable(candidate.keys, plan.model.name, owner), plan.policy.keySelection, turn),
    health: (key, model, owner) => breakers.health(key, model, owner, clock.monotonic()),

    async tryProbe(key, model, owner) {
      const { breakerKey } = key;
      const now = clock.monotonic();
      const needed = breakers.halfOpen(key, model, owner, now);
      const probe: Probe = { id: uuidv7(clock.now()), owner, ...needed };
      const of = [...(needed.key ? [''] : []), ...(needed.model ? [model] : [])];
      // From now on this replica does not request it again, whatever Postgres answers.
      for (const one of of) breakers.setProbe(breakerKey, one, now + PROBE_RETRY_MS);
      const { id } = probe;
      const leaseMs = options.probeLeaseMs;
      try {
        let taken = 0;
        for (const one of of) {
          if (!(await takeProbe(db, { breakerKey, model: one }, { id, owner, leaseMs }))) break;
          breakers.setProbe(breakerKey, one, clock.monotonic() + leaseMs);
          taken++;
        }
        if (taken === of.length && taken > 0) return probe;
        // The probe of one breaker without that of the other is of no use.
        if (taken > 0) await releaseProbe(db, breakerKey, id, owner);
      } catch (error) {
        log.warn({ err: reasonOf(error) }, 'probe of a breaker not taken');
        return null;
      }
      void refresh(); // another replica has it, or has closed the breaker
      return null;
    },

    releaseProbe({ breakerKey }, model, probe) {
      const now = clock.monotonic();
      if (probe.key) breakers.endProbe(breakerKey, '', probe.owner, now);
      if (probe.model) breakers.endProbe(breakerKey, model, probe.owner, now);
      writes.add(breakerKey, { kind: 'release', probeId: probe.id, owner: probe.owner });
    },

    calling({ breakerKey }, model, batchId) {
      if (breakerKey !== '') calls.called(breakerKey, model, batchId, clock.monotonic());
    },

    report(key, model, caller, result, probe) {
      const { breakerKey } = key;
      if (breakerKey === '') return;
      const now = clock.monotonic();
      const effect = BREAKER_EFFECTS[result.class];
      if (effect === 'close') calls.succeeded(breakerKey, model, now);
      const harmless = effect === 'close' || effect === 'none';
      if (harmless && probe === null && !breakers.knows(breakerKey, model)) return;
      const { owner } = caller;
      // The item is the likely cause of what it meets everywhere.
      const trips = !(caller.suspect && (effect === 'backoff' || effect === 'forbidden'));
      const failed = effect === 'backoff' ? calls.failure(breakerKey, model, caller, now) : [];
      const startedAt = now - Math.max(0, clock.now() - result.startedAt);
      const { retryAfterMs } = result;
      const left = { key: probe?.key ?? false, model: probe?.model ?? false };
      const event = { class: result.class, startedAt, retryAfterMs, owner, failed, probe: { ...left } };
      const changed = trips ? breakers.apply(breakerKey, model, event, now) : ({ key: false, model: 'none' } as const);
      const probeId = probe?.id ?? null;
      if (changed.key) left.key = false;
      const settled = changed.model === 'breaker' || changed.model === 'stepped';
      if (settled) left.model = false;
      if (changed.key || changed.model !== 'none') {
        const reason = result.class === 'network' ? 'network' : 'server_error';
        if (effect === 'close') writes.add(breakerKey, { kind: 'close', model, seenAt: now, probeId });
        if (effect === 'auth') writes.add(breakerKey, { kind: 'auth' });
        if (effect === 'account') writes.add(breakerKey, { kind: 'account', startedAt, probeId, owner });
        if (effect === 'forbidden') writes.add(breakerKey, { kind: 'forbidden', startedAt, probeId, model });
        if (effect === 'retry_after') {
          const most = Math.min(retryAfterMs ?? 0, MAX_RETRY_AFTER_MS);
          writes.add(breakerKey, { kind: 'retry_after', startedAt, probeId, owner, seenAt: now, retryAfterMs: most });
        }
        if (effect === 'backoff' && changed.model === 'stepped') {
          writes.add(breakerKey, { kind: 'probe_failure', model, reason, owner, probeId: probeId! });
        } else if (effect === 'backoff') {
          writes.add(breakerKey, { kind: 'failures', model, reason, owner, failures: failed });
        }
      }
      if (changed.key || settled) options.onChange?.({ hostKey: key.name, class: result.class });
      if (probe !== null && (left.key || left.model)) pool.releaseProbe(key, model, { ...probe, ...left });
    },

    reopening(plan, owner) {
      const now = clock.monotonic();
      const { name } = plan.model;
      let first = Number.POSITIVE_INFINITY;
      let reason: BreakerReason | null = null;
      let hostKey: string | null = null;
      for (const { keys } of plan.candidates) {
        for (const key of keys) {
          const inMs = breakers.reopensIn(key, name, owner, now);
          if (inMs === 0) return { inMs: 0, reason: null, hostKey: null };
          if (inMs < first || reason === null) {
            reason = breakers.reasonOf(key, name);
            hostKey = key.name;
          }
          first = Math.min(first, inMs);
        }
      }
      return { inMs: first === Number.POSITIVE_INFINITY ? null : Math.ceil(first), reason, hostKey };
    },

    async reset(key) {
      writes.drop(key.breakerKey);
      await resetKey(db, key);
      breakers.forget(key.breakerKey);
      await pool.wakeWaiting();
    },
    async wakeWaiting() {
      try {
        await wakeWaiting(db);
      } catch (error) {
        log.warn({ err: reasonOf(error) }, 'items that wait for breakers not woken');
      }
    },
    flush: writes.flush,
  };
  return pool;
}
