import { type Clock, sleep, uuidv7 } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { checksum } from '../base/turns.ts';
import type { Db } from '../db/database.ts';
import { isDataError } from '../db/errors.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { RouteFacts } from '../model/usage-event.ts';
import { type PayloadStore, StorageFull } from '../payloads/payload-store.ts';
import { commitOutcomes, type OutcomeRow, type RouteRow, routeId } from './commit.sql.ts';
import { type Outcome, unsentFacts } from './item/outcome.ts';

export type Final = Extract<Outcome, { kind: 'final' }>;
export interface FinalItem {
  item: ClaimedItem;
  outcome: Final;
}

/** Limits of one group (design section 3.4). */
const GROUP_ITEMS = 256;
const GROUP_BYTES = 8 * 1024 * 1024;
/** Groups under way at once: while one waits for its fsync the next is encoded and sent. */
const FLIGHTS = 2;
/** Above this the engine claims nothing: upstreams answer faster than the store or Postgres can take. */
const FULL_ITEMS = 8 * GROUP_ITEMS;
const FULL_BYTES = 64 * 1024 * 1024;
/** A segment older than this is written again before it is committed: the orphan sweep may soon look at it. */
const SEGMENT_MAX_AGE_MS = 3_600_000;
const MAX_KNOWN_ROUTES = 50_000;

export interface GroupCommitDeps {
  db: Db;
  store: PayloadStore;
  clock: Clock;
  log: Log;
  instance: string;
  flushMs: number;
  /** The group is committed, or part of it was no longer ours; `finished` batches have no open item any more. */
  onCommitted(items: readonly FinalItem[], finished: readonly string[]): void;
  /** These will never be recorded by us: their lease is gone. */
  onDropped(items: readonly FinalItem[]): void;
  /** Store or database refuse writes (true), or take them again (false). */
  onBlocked(blocked: boolean): void;
  observe(figures: { items: number; bytes: number; seconds: number }): void;
}

export interface GroupCommit {
  add(item: FinalItem): void;
  /** No room for more: stop claiming. */
  full(): boolean;
  /** Resolves when everything added so far is committed or dropped. */
  flush(): Promise<void>;
  /** Forgets everything: the lease is gone. Groups under way give up at their next step. */
  drop(): void;
  /** The worker id under which groups are committed from now on. */
  useWorker(id: string): void;
  size(): number;
}

/**
 * The group commit: outcomes of a short window go into one durable segment and one transaction. That is what makes the
 * service fast: no object and no transaction for a single item.
 */
export function createGroupCommit(deps: GroupCommitDeps): GroupCommit {
  let workerId = '';
  let generation = 0;
  let buffer: FinalItem[] = [];
  let bufferedBytes = 0;
  let pending = 0;
  let pendingBytes = 0;
  let flights = 0;
  let timer: NodeJS.Timeout | null = null;
  const waiters: (() => void)[] = [];
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
      const { group, bytes } = takeGroup();
      flights++;
      void fly(group, bytes);
    }
    if (buffer.length > 0 && timer === null && flights < FLIGHTS) {
      timer = setTimeout(() => {
        timer = null;
        launch(true);
      }, deps.flushMs);
    }
  };

  const takeGroup = () => {
    let bytes = 0;
    let n = 0;
    while (n < buffer.length && n < GROUP_ITEMS && (n === 0 || bytes < GROUP_BYTES)) {
      bytes += buffer[n++]!.outcome.response?.length ?? 0;
    }
    const group = n === buffer.length ? buffer : buffer.slice(0, n);
    buffer = n === buffer.length ? [] : buffer.slice(n);
    bufferedBytes -= bytes;
    return { group, bytes };
  };

  const fly = async (group: FinalItem[], bytes: number) => {
    const mine = generation;
    const start = deps.clock.monotonic();
    try {
      group.sort(byPosition);
      const finished = await commitGroup(deps, { workerId, group, knownRoutes, current: () => generation === mine });
      deps.observe({ items: group.length, bytes, seconds: (deps.clock.monotonic() - start) / 1000 });
      if (generation === mine) deps.onCommitted(group, finished);
    } finally {
      if (knownRoutes.size > MAX_KNOWN_ROUTES) knownRoutes = new Map();
      flights--;
      if (generation !== mine) deps.onDropped(group);
      else {
        pending -= group.length;
        pendingBytes -= bytes;
      }
      settle();
      launch(waiters.length > 0);
    }
  };

  return {
    add(item) {
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
    drop() {
      generation++;
      deps.onDropped(buffer);
      buffer = [];
      bufferedBytes = pending = pendingBytes = 0;
      settle();
    },
    useWorker(id) {
      workerId = id;
    },
  };
}

function byPosition(a: FinalItem, b: FinalItem): number {
  const x = a.item.batch.id;
  const y = b.item.batch.id;
  return x < y ? -1 : x > y ? 1 : a.item.idx - b.item.idx;
}

interface Group {
  workerId: string;
  group: readonly FinalItem[];
  knownRoutes: Map<RouteFacts, string>;
  /** False once the lease is lost: nothing is written for it any more. */
  current(): boolean;
}

/** Writes the segment and commits; waits out storage and database faults. Gives the finished batches. */
async function commitGroup(deps: GroupCommitDeps, g: Group): Promise<string[]> {
  let segment = await writeSegment(deps, g);
  for (let failures = 0; g.current(); failures++) {
    try {
      if (segment.id !== null && deps.clock.now() - segment.at > SEGMENT_MAX_AGE_MS)
        segment = await writeSegment(deps, g);
      const finished = await commitRows(deps, g, segment.id, segment.rows);
      if (failures > 0) deps.onBlocked(false);
      return finished;
    } catch (error) {
      // The outcome of a commit whose answer was lost is unknown; running the statement again is safe, because rows that
      // it made final do not match the guard any more. Whatever else Postgres says (read-only after a failover, say) is
      // waited out as well: giving up would mean to call the upstreams again.
      if (failures % 60 === 0) deps.log.warn({ err: reasonOf(error) }, 'group commit waits for the database');
      deps.onBlocked(true);
      await sleep(Math.min(1000, 20 * 2 ** failures));
    }
  }
  deps.onBlocked(false);
  return [];
}

/** One statement for the group; on bad data it is halved until the single bad row stands alone. */
async function commitRows(
  deps: GroupCommitDeps,
  g: Group,
  segmentId: string | null,
  rows: readonly OutcomeRow[],
): Promise<string[]> {
  const fresh = new Map<string, RouteRow>();
  const routes = rows.map((row) => {
    const facts = row.usage.route;
    const known = g.knownRoutes.get(facts);
    if (known !== undefined) return known;
    const id = routeId(facts);
    fresh.set(id, { id, facts });
    return id;
  });
  try {
    const result = await commitOutcomes(deps.db, {
      workerId: g.workerId,
      instance: deps.instance,
      segmentId,
      rows,
      routes,
      newRoutes: [...fresh.values()],
    });
    for (const route of fresh.values()) g.knownRoutes.set(route.facts, route.id);
    if (result.committed < rows.length) {
      deps.log.warn({ lost: rows.length - result.committed }, 'outcomes dropped: the items are no longer ours');
    }
    return result.finished;
  } catch (error) {
    if (!isDataError(error)) throw error;
    if (rows.length > 1) {
      const half = rows.length >> 1;
      const left = await commitRows(deps, g, segmentId, rows.slice(0, half));
      return left.concat(await commitRows(deps, g, segmentId, rows.slice(half)));
    }
    const row = rows[0]!;
    if (row.error === INTERNAL && row.usage.attempts === 0) return [];
    deps.log.error(
      { err: reasonOf(error), batch: row.batchId, idx: row.idx },
      'one outcome is refused by the database',
    );
    return commitRows(deps, g, null, [minimalRow(g, row)]);
  }
}

const INTERNAL = 'batch item: internal';

function minimalRow(g: Group, row: OutcomeRow): OutcomeRow {
  const { item } = g.group.find((one) => one.item.batch.id === row.batchId && one.item.idx === row.idx)!;
  const usage = { ...unsentFacts(item, 'internal', 'internal'), attempts: 0 };
  return { ...row, state: 'discarded', error: INTERNAL, span: null, usage };
}

interface Segment {
  /** Null when no item of the group has a response. */
  id: string | null;
  at: number;
  rows: OutcomeRow[];
}

async function writeSegment(deps: GroupCommitDeps, g: Group): Promise<Segment> {
  const pieces: Buffer[] = [];
  let offset = 0;
  const crcs: number[] = [];
  for (const { outcome } of g.group) {
    const crc = outcome.response === null ? 0 : checksum(outcome.response);
    crcs.push(typeof crc === 'number' ? crc : await crc);
  }
  const rows = g.group.map(({ item, outcome }, i): OutcomeRow => {
    const { response } = outcome;
    const span = response && { offset, length: response.length, crc: crcs[i]! };
    if (response) {
      pieces.push(response);
      offset += response.length;
    }
    return {
      batchId: item.batch.id,
      idx: item.idx,
      claimNo: item.claimNo,
      state: outcome.state,
      error: outcome.error,
      span,
      usage: outcome.usage,
    };
  });
  if (pieces.length === 0) return { id: null, at: 0, rows };
  for (let failures = 0; g.current(); failures++) {
    // A new id each time: after a failed fsync the kernel may have dropped the pages, so the old file is not trusted.
    const at = deps.clock.now();
    const id = uuidv7(at);
    try {
      await deps.store.write({ kind: 'segment', id }, pieces);
      if (failures > 0) deps.onBlocked(false);
      return { id, at, rows };
    } catch (error) {
      if (failures === 0) deps.log.warn({ err: reasonOf(error) }, 'group commit waits for the payload store');
      deps.onBlocked(true);
      await sleep(Math.min(error instanceof StorageFull ? 2000 : 1000, 50 * 2 ** failures));
    }
  }
  deps.onBlocked(false);
  return { id: null, at: 0, rows: [] };
}
