import type { HostKey } from '../model/catalog.ts';
import { type Breaker, type BreakerEvent, nextBreaker, nextForbidden } from './breaker.ts';
import type { BreakerRow } from './keypool.sql.ts';

/**
 * Says whether a key may be drawn for a model. The call that takes the probe may draw a `half_open` key. A `probing` key
 * is half-open with the probe under way.
 */
export type KeyHealth = 'closed' | 'half_open' | 'probing' | 'open' | 'auth';

/** The view that a replica has of all breakers. Times are local monotonic milliseconds. */
export interface BreakerCache {
  health(key: HostKey, model: string, now: number): KeyHealth;
  /** Milliseconds until the key may be drawn for the model: 0 if it may now, Infinity after a 401. */
  reopensIn(key: HostKey, model: string, now: number): number;
  /** False if the key is closed for every model: then an outcome of a healthy key changes nothing. */
  knows(breakerKey: string): boolean;
  /** Applies an outcome. Returns true if the key's breaker changed. */
  apply(breakerKey: string, event: BreakerEvent, now: number): boolean;
  /** Applies a 403. Returns true if the rest of the (key, model) began with it. */
  forbid(breakerKey: string, model: string, startedAt: number, now: number): boolean;
  /** The probe is under way until then. With 0 it is free again. */
  setProbe(breakerKey: string, until: number): void;
  /** Drops everything known of a key. */
  forget(breakerKey: string): void;
  /** Marks a moment: `replace` keeps what changed here after it. */
  mark(): number;
  /** Accepts the rows of Postgres, except for keys that changed here since `mark` or that `unwritten` names. */
  replace(rows: readonly BreakerRow[], now: number, mark: number, unwritten: (breakerKey: string) => boolean): void;
}

interface Entry {
  breaker: Breaker | null;
  probeUntil: number;
  /** Model -> the time until which it rests. */
  forbidden: Map<string, number>;
  changed: number;
}

/** The pause before the next request for a probe that another replica holds: it may end at any moment. */
export const PROBE_RETRY_MS = 1_000;

/** Makes an empty cache: every key is closed. */
export function createBreakerCache(): BreakerCache {
  let entries = new Map<string, Entry>();
  let changes = 0;

  const touch = (breakerKey: string): Entry => {
    const entry = entries.get(breakerKey) ?? newEntry();
    entries.set(breakerKey, entry);
    entry.changed = ++changes;
    return entry;
  };

  // Usually nothing is known of a key, and this look-up is the whole cost of an item.
  const health = (key: HostKey, model: string, now: number): KeyHealth => {
    const entry = entries.size === 0 || key.breakerKey === '' ? undefined : entries.get(key.breakerKey);
    if (entry === undefined) return 'closed';
    if (entry.breaker?.reason === 'auth') return 'auth';
    if (now < (entry.breaker?.openUntil ?? 0) || now < (entry.forbidden.get(model) ?? 0)) return 'open';
    if (entry.breaker === null) return 'closed';
    return now < entry.probeUntil ? 'probing' : 'half_open';
  };

  return {
    health,
    reopensIn(key, model, now) {
      const known = health(key, model, now);
      if (known === 'closed' || known === 'half_open') return 0;
      if (known === 'probing') return PROBE_RETRY_MS;
      const entry = entries.get(key.breakerKey)!;
      return Math.max(entry.breaker?.openUntil ?? 0, entry.forbidden.get(model) ?? 0) - now;
    },
    knows: (breakerKey) => entries.has(breakerKey),
    apply(breakerKey, event, now) {
      const before = entries.get(breakerKey)?.breaker ?? null;
      const after = nextBreaker(before, event, now);
      if (after === before) return false;
      const entry = touch(breakerKey);
      entry.breaker = after;
      entry.probeUntil = 0;
      return true;
    },
    forbid(breakerKey, model, startedAt, now) {
      const before = entries.get(breakerKey)?.forbidden.get(model);
      const after = nextForbidden(before, startedAt, now);
      if (after === before) return false;
      touch(breakerKey).forbidden.set(model, after);
      return true;
    },
    setProbe(breakerKey, until) {
      if (entries.has(breakerKey)) touch(breakerKey).probeUntil = until;
    },
    forget(breakerKey) {
      const entry = touch(breakerKey);
      entry.breaker = null;
      entry.forbidden.clear();
    },
    mark: () => changes,
    replace(rows, now, mark, unwritten) {
      const next = new Map<string, Entry>();
      for (const [breakerKey, entry] of entries) {
        if (entry.changed > mark || unwritten(breakerKey)) next.set(breakerKey, entry);
      }
      for (const row of rows) {
        const entry = next.get(row.breaker_key) ?? newEntry();
        if (entry.changed > 0) continue; // kept from before
        next.set(row.breaker_key, entry);
        const until = row.open_for_ms === null ? Number.POSITIVE_INFINITY : now + row.open_for_ms;
        if (row.reason === 'forbidden') {
          entry.forbidden.set(row.model, until);
        } else {
          entry.breaker = { reason: row.reason, step: row.step, openUntil: until };
          entry.probeUntil = now + (row.probe_for_ms ?? 0);
        }
      }
      entries = next;
    },
  };
}

function newEntry(): Entry {
  return { breaker: null, probeUntil: 0, forbidden: new Map(), changed: 0 };
}
