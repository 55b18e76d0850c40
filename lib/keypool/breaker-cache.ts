import type { HostKey } from '../model/catalog.ts';
import { type Breaker, type BreakerEvent, type BreakerReason, nextKeyBreaker, nextModelState } from './breaker.ts';
import type { BreakerRow } from './breakers.sql.ts';
import type { Failure } from './failures.ts';

/**
 * Says whether an owner may draw a key for a model. The call that takes the probe may draw a `half_open` key. A `probing`
 * key is half-open with the probe under way.
 */
export type KeyHealth = 'closed' | 'half_open' | 'probing' | 'open' | 'auth';

/** The breakers that stand in the way of a call: the key's own, that of the model, or both. */
export interface HalfOpen {
  key: boolean;
  model: boolean;
}

/** The parts of an outcome that a replica applies at once. */
export interface CacheEvent extends Omit<BreakerEvent, 'probe'> {
  owner: string;
  probe: HalfOpen;
  /** The entries that a failure adds to the failures of the model. */
  failed: readonly Failure[];
}

/**
 * The changes by an event. Of the model's breaker: `failures` says that it is still closed and knows of a new failure,
 * `stepped` that its probe failed, `breaker` that it opened or closed.
 */
export interface CacheChange {
  key: boolean;
  model: 'none' | 'failures' | 'stepped' | 'breaker';
}

/** The view that a replica has of all breakers. Times are local monotonic milliseconds. */
export interface BreakerCache {
  health(key: HostKey, model: string, owner: string, now: number): KeyHealth;
  /** The breakers of which a call needs the probe. */
  halfOpen(key: HostKey, model: string, owner: string, now: number): HalfOpen;
  /** Milliseconds until the owner may draw the key for the model: 0 if it may now, Infinity after a 401. */
  reopensIn(key: HostKey, model: string, owner: string, now: number): number;
  /** The reason why the key may not be drawn: that of the breaker that stays open longer; null for a closed one. */
  reasonOf(key: HostKey, model: string): BreakerReason | null;
  /** False if neither the key nor the model has a breaker or failures: then a good outcome changes nothing. */
  knows(breakerKey: string, model: string): boolean;
  /** Applies an outcome. */
  apply(breakerKey: string, model: string, event: CacheEvent, now: number): CacheChange;
  /** The probe of the breaker (`model` empty: the key's) is under way until then. */
  setProbe(breakerKey: string, model: string, until: number): void;
  /** A probe ended without a word on the breaker: it is free again, a second later for the same owner. */
  endProbe(breakerKey: string, model: string, owner: string, now: number): void;
  /** Drops everything known of a key. */
  forget(breakerKey: string): void;
  /** Marks a moment: `replace` keeps what changed here after it. */
  mark(): number;
  /** Accepts the rows of Postgres, except for keys that changed here since `mark` or that `unwritten` names. */
  replace(rows: readonly ReadBreaker[], now: number, mark: number, unwritten: (breakerKey: string) => boolean): void;
}

/** A row of Postgres with its failures on the local clock. */
export type ReadBreaker = Omit<BreakerRow, 'failures'> & { failures: readonly Failure[] };

interface State {
  breaker: Breaker | null;
  probeUntil: number;
  lastOwner: string | null;
  failures: readonly Failure[];
}

interface Entry {
  own: State;
  models: Map<string, State>;
  changed: number;
}

/** The pause before the next request for a probe that another replica holds: it may end at any moment. */
export const PROBE_RETRY_MS = 1_000;

/** The owner of the last probe comes so much later than everybody else (`take_probe` in lib/keypool/breakers.sql.ts). */
const PROBE_TURN_MS = 1_000;

/** Makes an empty cache: every key is closed. */
export function createBreakerCache(): BreakerCache {
  let entries = new Map<string, Entry>();
  let changes = 0;

  const touch = (breakerKey: string): Entry => {
    const entry = entries.get(breakerKey) ?? { own: newState(), models: new Map(), changed: 0 };
    entries.set(breakerKey, entry);
    entry.changed = ++changes;
    return entry;
  };
  const stateOf = (entry: Entry | undefined, model: string) => (model === '' ? entry?.own : entry?.models.get(model));
  const touchState = (breakerKey: string, model: string): State => {
    const entry = touch(breakerKey);
    const state = stateOf(entry, model) ?? newState();
    if (model !== '') entry.models.set(model, state);
    return state;
  };
  // Usually nothing is known of a key, and this look-up is the whole cost of an item.
  const find = (key: HostKey): Entry | undefined =>
    entries.size === 0 || key.breakerKey === '' ? undefined : entries.get(key.breakerKey);

  const reopensIn = (key: HostKey, model: string, owner: string, now: number): number => {
    const entry = find(key);
    if (entry === undefined) return 0;
    return Math.max(stateReopensIn(entry.own, owner, now), stateReopensIn(entry.models.get(model), owner, now));
  };

  const halfOpen = (key: HostKey, model: string, owner: string, now: number): HalfOpen => {
    const entry = find(key);
    const needs = (state: State | undefined) =>
      isOpen(state, now) && state!.breaker!.openUntil <= now && stateReopensIn(state, owner, now) === 0;
    return { key: needs(entry?.own), model: needs(entry?.models.get(model)) };
  };

  return {
    halfOpen,
    reopensIn,
    health(key, model, owner, now) {
      const entry = find(key);
      if (entry === undefined) return 'closed';
      if (entry.own.breaker?.reason === 'auth') return 'auth';
      const states = [entry.own, entry.models.get(model)].filter((state) => isOpen(state, now));
      if (states.length === 0) return 'closed';
      if (states.some((state) => now < startOf(state!, owner))) return 'open';
      return states.some((state) => now < state!.probeUntil) ? 'probing' : 'half_open';
    },
    reasonOf(key, model) {
      const entry = find(key);
      const own = entry?.own.breaker ?? null;
      const its = entry?.models.get(model)?.breaker ?? null;
      if (own === null || its === null) return (own ?? its)?.reason ?? null;
      return own.openUntil >= its.openUntil ? own.reason : its.reason;
    },
    knows(breakerKey, model) {
      const entry = entries.get(breakerKey);
      if (entry === undefined) return false;
      const state = entry.models.get(model);
      return (
        entry.own.breaker !== null || (state !== undefined && (state.breaker !== null || state.failures.length > 0))
      );
    },
    apply(breakerKey, model, { owner, probe, failed, ...event }, now) {
      const entry = entries.get(breakerKey);
      const own = entry?.own.breaker ?? null;
      const nextOwn = nextKeyBreaker(own, { ...event, probe: probe.key }, now);
      if (nextOwn !== own) set(touchState(breakerKey, ''), nextOwn, owner);
      const known: State = entry?.models.get(model) ?? newState();
      const next = nextModelState(known, { ...event, probe: probe.model }, failed, now);
      if (next === known) return { key: nextOwn !== own, model: 'none' };
      const opens = next.breaker !== known.breaker;
      const stepped = probe.model && known.breaker !== null && next.breaker !== null;
      const state = touchState(breakerKey, model);
      if (opens) set(state, next.breaker, owner);
      state.failures = next.failures;
      return { key: nextOwn !== own, model: opens ? (stepped ? 'stepped' : 'breaker') : 'failures' };
    },
    setProbe(breakerKey, model, until) {
      if (stateOf(entries.get(breakerKey), model)) touchState(breakerKey, model).probeUntil = until;
    },
    endProbe(breakerKey, model, owner, now) {
      if (!stateOf(entries.get(breakerKey), model)?.breaker) return;
      const state = touchState(breakerKey, model);
      state.breaker = { ...state.breaker!, openUntil: Math.max(state.breaker!.openUntil, now) };
      state.lastOwner = owner;
      state.probeUntil = 0;
    },
    forget(breakerKey) {
      const entry = touch(breakerKey);
      entry.own = newState();
      entry.models.clear();
    },
    mark: () => changes,
    replace(rows, now, mark, unwritten) {
      const next = new Map<string, Entry>();
      for (const [breakerKey, entry] of entries) {
        if (entry.changed > mark || unwritten(breakerKey)) next.set(breakerKey, entry);
      }
      for (const row of rows) {
        const entry = next.get(row.breaker_key) ?? { own: newState(), models: new Map(), changed: 0 };
        if (entry.changed > 0) continue; // kept from before
        next.set(row.breaker_key, entry);
        if (row.model === '') entry.own = readState(row, now);
        else entry.models.set(row.model, readState(row, now));
      }
      entries = next;
    },
  };
}

function newState(): State {
  return { breaker: null, probeUntil: 0, lastOwner: null, failures: [] };
}

function set(state: State, breaker: Breaker | null, owner: string): void {
  state.breaker = breaker;
  state.probeUntil = 0;
  state.lastOwner = breaker === null ? null : owner;
}

/** A model whose rest after a 403 is over needs no probe: it counts as closed. */
function isOpen(state: State | undefined, now: number): boolean {
  if (!state?.breaker) return false;
  return state.breaker.reason !== 'forbidden' || now < state.breaker.openUntil;
}

/** The time from which the owner may take the probe. */
function startOf({ breaker, lastOwner }: State, owner: string): number {
  const turn = breaker!.reason !== 'forbidden' && lastOwner !== null && lastOwner === owner ? PROBE_TURN_MS : 0;
  return breaker!.openUntil + turn;
}

function stateReopensIn(state: State | undefined, owner: string, now: number): number {
  if (!isOpen(state, now)) return 0;
  const start = startOf(state!, owner);
  if (now < start) return start - now;
  return now < state!.probeUntil ? PROBE_RETRY_MS : 0;
}

function readState(row: ReadBreaker, now: number): State {
  const state = newState();
  state.failures = row.failures;
  if (row.reason === null) return state;
  const openUntil = row.open_for_ms === null ? Number.POSITIVE_INFINITY : now + row.open_for_ms;
  state.breaker = { reason: row.reason, step: row.step!, openUntil };
  state.probeUntil = now + (row.probe_for_ms ?? 0);
  state.lastOwner = row.last_owner;
  return state;
}
