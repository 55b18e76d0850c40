/** A failed item, or a batch that called, as far as the breaker of a (key, model) is concerned. */
export interface Failure {
  batchId: string;
  /** The item that failed; CALLED for a batch that only called. */
  idx: number;
  /** The time when the outcome was known, or the call sent; local monotonic milliseconds. */
  at: number;
}

/**
 * The `idx` of a batch that called.
 *
 * @internal Exported for its tests.
 */
export const CALLED = -1;

/** Failures that lie further apart say nothing of the key. */
const FAILURE_WINDOW_MS = 10_000;

/** The items whose failures open a breaker. More are not kept, and of callers the two that a decision needs. */
const ITEMS = 3;
const CALLERS = 2;

/**
 * Adds entries to a list: one entry for each item and for each batch that called, its latest, and of those the latest few.
 * Of the same moment, what is added comes first.
 */
export function mergeFailures(known: readonly Failure[], added: readonly Failure[]): readonly Failure[] {
  const latest = new Map<string, Failure>();
  for (const one of [...added, ...known]) {
    const id = `${one.batchId} ${one.idx}`;
    const before = latest.get(id);
    if (before === undefined || before.at < one.at) latest.set(id, one);
  }
  const isNew = new Set(added);
  const ordered = [...latest.values()].sort(
    (a, b) => b.at - a.at || Number(isNew.has(b)) - Number(isNew.has(a)) || compareIds(a, b),
  );
  const items = ordered.filter(({ idx }) => idx !== CALLED).slice(0, ITEMS);
  const callers = ordered.filter(({ idx }) => idx === CALLED).slice(0, CALLERS);
  return [...items, ...callers];
}

function compareIds(a: Failure, b: Failure): number {
  if (a.batchId === b.batchId) return a.idx - b.idx;
  return a.batchId < b.batchId ? -1 : 1;
}

/**
 * Whether failures open a closed breaker ("Circuit breakers" in docs/spec/gateway-rules.md): three items within 10 s, and
 * of two batches when two called in that time. So no single item does, and no single batch beside another one.
 */
export function opensBreaker(failures: readonly Failure[], now: number): boolean {
  const recent = failures.filter(({ at }) => at > now - FAILURE_WINDOW_MS);
  const failed = recent.filter(({ idx }) => idx !== CALLED);
  const failing = new Set(failed.map(({ batchId }) => batchId)).size;
  const called = new Set(recent.map(({ batchId }) => batchId)).size;
  return failed.length >= ITEMS && (failing >= 2 || called < 2);
}

/** Reads entries `batch,idx,age in ms`, joined by semicolons; null for none. */
export function parseFailures(text: string | null, now: number): readonly Failure[] {
  if (text === null) return [];
  return text.split(';').map((entry) => {
    const [batchId, idx, age] = entry.split(',');
    return { batchId: batchId!, idx: Number(idx), at: now - Number(age) };
  });
}

/** The last call and the last success of a (key, model) on this replica. */
interface Calls {
  batchId: string;
  at: number;
  /** The batch that called before, another one. */
  other: { batchId: string; at: number } | null;
  successAt: number;
}

/** The latest calls of this replica, in memory. A failure that is written to Postgres takes its facts from here. */
export interface CallLog {
  called(breakerKey: string, model: string, batchId: string, now: number): void;
  succeeded(breakerKey: string, model: string, now: number): void;
  /** The time of the last success; -Infinity without one. */
  lastSuccess(breakerKey: string, model: string): number;
  /** A failed item, with another batch that called within the window. */
  failure(breakerKey: string, model: string, item: { batchId: string; idx: number }, now: number): readonly Failure[];
}

/** An empty log; it holds one entry for each (key, model). */
export function createCallLog(): CallLog {
  const byKey = new Map<string, Map<string, Calls>>();
  return {
    called(breakerKey, model, batchId, now) {
      let byModel = byKey.get(breakerKey);
      if (byModel === undefined) {
        byModel = new Map();
        byKey.set(breakerKey, byModel);
      }
      const calls = byModel.get(model);
      if (calls === undefined) {
        byModel.set(model, { batchId, at: now, other: null, successAt: Number.NEGATIVE_INFINITY });
        return;
      }
      if (calls.batchId !== batchId) {
        calls.other = { batchId: calls.batchId, at: calls.at };
        calls.batchId = batchId;
      }
      calls.at = now;
    },
    succeeded(breakerKey, model, now) {
      const calls = byKey.get(breakerKey)?.get(model);
      if (calls !== undefined) calls.successAt = now;
    },
    lastSuccess: (breakerKey, model) => byKey.get(breakerKey)?.get(model)?.successAt ?? Number.NEGATIVE_INFINITY,
    failure(breakerKey, model, { batchId, idx }, now) {
      const own: Failure = { batchId, idx, at: now };
      const calls = byKey.get(breakerKey)?.get(model);
      const other = calls?.batchId === batchId ? calls.other : calls;
      if (!other || other.at <= now - FAILURE_WINDOW_MS) return [own];
      return [own, { batchId: other.batchId, idx: CALLED, at: other.at }];
    },
  };
}
