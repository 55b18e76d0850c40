import type { Clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { createTransition } from '../base/modes.ts';
import type { Db } from '../db/database.ts';
import type { RouteFacts } from '../model/usage-event.ts';
import type { PayloadStore } from '../payloads/payload-store.ts';
import {
  commitGroup,
  GROUP_TRANSITIONS,
  type GroupMode,
  type ItemOutcome,
  isAway,
  type OutcomeGroup,
} from './commit-group.ts';
import { isHeld, NO_TENURE, type Tenure } from './lease/tenure.ts';
import type { Periods } from './periods.ts';

/** Limits of one group ("Group commit" in docs/spec/engine-guarantees.md). */
const GROUP_ITEMS = 256;
const GROUP_BYTES = 8 * 1024 * 1024;
/** Groups under way at once: while one waits for its fsync the next is encoded and sent. */
const FLIGHTS = 2;
/** Above this the engine claims nothing: upstreams answer faster than the store or Postgres can take. */
const FULL_ITEMS = 8 * GROUP_ITEMS;
const FULL_BYTES = 64 * 1024 * 1024;
const MAX_KNOWN_ROUTES = 50_000;

export interface GroupCommitDeps {
  db: Db;
  store: PayloadStore;
  clock: Clock;
  log: Log;
  instance: string;
  flushMs: number;
  periods: Pick<Periods, 'databaseRetry' | 'storeRetry'>;
  /** The group is committed, or part of it was no longer ours; `finished` batches have no open item any more. */
  onCommitted(items: readonly ItemOutcome[], finished: readonly string[]): void;
  /** These will never be recorded by us: their tenure has ended. */
  onDropped(items: readonly ItemOutcome[]): void;
  /** Store or database refuse writes (true), or take those of every group again (false). */
  onBlocked(blocked: boolean): void;
  observe(figures: { items: number; bytes: number; seconds: number }): void;
}

export interface GroupCommit {
  /** Adds an outcome of a tenure. When that ends, all that was added in it and is not committed is dropped. */
  add(tenure: Tenure, item: ItemOutcome): void;
  /** No room for more: stop claiming. */
  full(): boolean;
  /** Resolves when everything added so far is committed or dropped. */
  flush(): Promise<void>;
  size(): number;
}

/**
 * The group commit: outcomes of a short window go into one durable segment and one transaction. That is what makes the
 * service fast: no object and no transaction for a single item.
 */
export function createGroupCommit(deps: GroupCommitDeps): GroupCommit {
  let tenure = NO_TENURE;
  let away = 0;
  let buffer: ItemOutcome[] = [];
  let bufferedBytes = 0;
  let pending = 0;
  let pendingBytes = 0;
  let flights = 0;
  let timer: NodeJS.Timeout | null = null;
  const waiters: (() => void)[] = [];
  const transition = createTransition('group of outcomes', GROUP_TRANSITIONS, deps.log);
  let knownRoutes = new Map<RouteFacts, string>();

  const settle = () => {
    if (pending === 0) for (const wake of waiters.splice(0)) wake();
  };

  const launch = (all: boolean) => {
    while (
      flights < FLIGHTS &&
      buffer.length > 0 &&
      (all || buffer.length >= GROUP_ITEMS || bufferedBytes >= GROUP_BYTES)
    ) {
      flights++;
      void fly(takeGroup());
    }
    if (buffer.length > 0 && timer === null && flights < FLIGHTS) {
      timer = setTimeout(() => {
        timer = null;
        launch(true);
      }, deps.flushMs);
    }
  };

  const takeGroup = (): OutcomeGroup => {
    let bytes = 0;
    let n = 0;
    while (n < buffer.length && n < GROUP_ITEMS && (n === 0 || bytes < GROUP_BYTES)) {
      bytes += buffer[n++]!.outcome.response?.length ?? 0;
    }
    const items = n === buffer.length ? buffer : buffer.slice(0, n);
    buffer = n === buffer.length ? [] : buffer.slice(n);
    bufferedBytes -= bytes;
    items.sort(byPosition);
    let mode: GroupMode = 'writing';
    return {
      tenure,
      items,
      bytes,
      go(to) {
        const change = Number(isAway(to)) - Number(isAway(mode));
        mode = transition(mode, to);
        away += change;
        // Two groups may be under way: writes are taken again when none of them waits.
        if (change === 1 && away === 1) deps.onBlocked(true);
        else if (change === -1 && away === 0) deps.onBlocked(false);
      },
    };
  };

  const fly = async (group: OutcomeGroup) => {
    const { items, bytes } = group;
    const start = deps.clock.monotonic();
    try {
      const finished = await commitGroup({ ...deps, knownRoutes }, group);
      deps.observe({ items: items.length, bytes, seconds: (deps.clock.monotonic() - start) / 1000 });
      if (isHeld(group.tenure)) deps.onCommitted(items, finished);
    } finally {
      if (knownRoutes.size > MAX_KNOWN_ROUTES) knownRoutes = new Map();
      flights--;
      if (isHeld(group.tenure)) {
        pending -= items.length;
        pendingBytes -= bytes;
      } else deps.onDropped(items);
      settle();
      launch(waiters.length > 0);
    }
  };

  const drop = () => {
    deps.onDropped(buffer);
    buffer = [];
    bufferedBytes = pending = pendingBytes = 0;
    settle();
  };

  return {
    add(of, item) {
      if (!isHeld(of)) return deps.onDropped([item]);
      if (of !== tenure) {
        tenure = of;
        tenure.signal.addEventListener('abort', drop, { once: true });
      }
      const bytes = item.outcome.response?.length ?? 0;
      buffer.push(item);
      bufferedBytes += bytes;
      pending++;
      pendingBytes += bytes;
      launch(deps.flushMs === 0);
    },
    full: () => pending >= FULL_ITEMS || pendingBytes >= FULL_BYTES,
    size: () => pending,
    flush() {
      if (pending === 0) return Promise.resolve();
      return new Promise((resolve) => {
        waiters.push(resolve);
        launch(true);
      });
    },
  };
}

function byPosition(a: ItemOutcome, b: ItemOutcome): number {
  const x = a.item.batch.id;
  const y = b.item.batch.id;
  return x < y ? -1 : x > y ? 1 : a.item.idx - b.item.idx;
}
