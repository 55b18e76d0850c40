import { type Clock, uuidv7 } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Transitions } from '../base/modes.ts';
import { type RetryOptions, retryUntil } from '../base/retry.ts';
import { checksum } from '../base/turns.ts';
import type { Db } from '../db/database.ts';
import { isDataError, retryLevel } from '../db/errors.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { RouteFacts } from '../model/usage-event.ts';
import { type PayloadStore, StorageFull } from '../payloads/payload-store.ts';
import { commitOutcomes, type OutcomeRow, type RouteRow, routeId } from './commit.sql.ts';
import { type Outcome, unsentFacts } from './item/outcome.ts';
import { isHeld, type Tenure } from './lease/tenure.ts';
import type { Periods } from './periods.ts';

export interface ItemOutcome {
  item: ClaimedItem;
  outcome: Extract<Outcome, { kind: 'final' }>;
}

/** A segment older than this is written again before it is committed: the orphan sweep may soon look at it. */
const SEGMENT_MAX_AGE_MS = 3_600_000;

/**
 * The modes of a group of collected outcomes.
 *
 *                   segment durable              transaction committed
 *     writing ─────────────────────► committing ────────────────────────► recorded
 *      │   ▲                          │  │   ▲
 *      │   │ segment too old          │  │   │ (a group without answers has no segment to write)
 *      │   ├──────────────────────────┘  │
 *      │   │                             │ refused
 *      │ refused                         ▼
 *      ▼   │                         database away ───────────────────────► recorded
 *     store away ──────► committing      └── segment too old: writing
 *
 * The two `away` modes try again until they succeed; while a group is in one of them nothing is claimed. The end of the
 * tenure leads from every mode to `dropped`: the items are somebody else's, and so are their outcomes.
 */
export type GroupMode = 'writing' | 'store away' | 'committing' | 'database away' | 'recorded' | 'dropped';

export const GROUP_TRANSITIONS: Transitions<GroupMode> = {
  writing: ['store away', 'committing', 'dropped'],
  'store away': ['committing', 'dropped'],
  committing: ['database away', 'writing', 'recorded', 'dropped'],
  'database away': ['writing', 'recorded', 'dropped'],
  recorded: [],
  dropped: [],
};

/** True while the payload store or the database refuses what a group writes. */
export function isAway(mode: GroupMode): boolean {
  return mode === 'store away' || mode === 'database away';
}

/** Outcomes of one tenure that are recorded together. */
export interface OutcomeGroup {
  tenure: Tenure;
  /** In (batch, idx) order. */
  items: readonly ItemOutcome[];
  /** Of their answers. */
  bytes: number;
  /** Makes a transition. */
  go(mode: GroupMode): void;
}

export interface CommitGroupDeps {
  periods: Pick<Periods, 'databaseRetry' | 'storeRetry'>;
  db: Db;
  store: PayloadStore;
  clock: Clock;
  log: Log;
  instance: string;
  /** Ids of routes that are stored; the group's own are added. */
  knownRoutes: Map<RouteFacts, string>;
}

/**
 * Writes the segment of a group and commits its rows, and waits out faults of store and database. Returns the batches that
 * have no open item any more. The group ends as `recorded` or `dropped`.
 */
export async function commitGroup(deps: CommitGroupDeps, group: OutcomeGroup): Promise<string[]> {
  for (;;) {
    const segment = await writeSegment(deps, group);
    if (segment === null) break;
    group.go('committing');
    const committed = await commitSegment(deps, group, segment);
    if (committed === null) break;
    if (committed === 'too old') {
      group.go('writing');
      continue;
    }
    group.go('recorded');
    return committed;
  }
  group.go('dropped');
  return [];
}

/** Repeats a step until it succeeds, in the mode `away` from its first failure on; null when the tenure ends. */
async function insist<T>(
  group: OutcomeGroup,
  away: 'store away' | 'database away',
  step: () => Promise<T>,
  options: Pick<RetryOptions, 'min' | 'max'> & { onFirst(error: unknown): void },
): Promise<T | null> {
  const done = await retryUntil(step, {
    ...options,
    signal: group.tenure.signal,
    onFirst(error) {
      group.go(away);
      options.onFirst(error);
    },
  });
  return done.aborted || !isHeld(group.tenure) ? null : done.value;
}

interface Segment {
  /** Null when no item of the group has a response. */
  id: string | null;
  at: number;
  rows: OutcomeRow[];
}

/** Null when the tenure has ended. */
async function writeSegment(deps: CommitGroupDeps, group: OutcomeGroup): Promise<Segment | null> {
  const pieces: Buffer[] = [];
  let offset = 0;
  const crcs: number[] = [];
  for (const { outcome } of group.items) {
    const crc = outcome.response === null ? 0 : checksum(outcome.response);
    crcs.push(typeof crc === 'number' ? crc : await crc);
  }
  const rows = group.items.map(({ item, outcome }, i): OutcomeRow => {
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
  const write = async () => {
    // A new id each time: after a failed fsync the kernel may have dropped the pages, so the old file is not trusted.
    const at = deps.clock.now();
    const id = uuidv7(at);
    await deps.store.write({ kind: 'segment', id }, pieces);
    return { id, at, rows };
  };
  return insist(group, 'store away', write, {
    ...deps.periods.storeRetry,
    onFirst(error) {
      const level = error instanceof StorageFull ? 'warn' : 'error';
      deps.log[level]({ err: reasonOf(error) }, 'group commit waits for the payload store');
    },
  });
}

/** The batches finished; null when the tenure has ended. */
function commitSegment(
  deps: CommitGroupDeps,
  group: OutcomeGroup,
  segment: Segment,
): Promise<string[] | 'too old' | null> {
  // The outcome of a commit whose answer was lost is unknown; running the statement again is safe, because rows that it
  // made final do not match the guard any more. Whatever else Postgres says (read-only after a failover, say) is waited
  // out as well: giving up would mean to call the upstreams again.
  const commit = async () => {
    if (segment.id !== null && deps.clock.now() - segment.at > SEGMENT_MAX_AGE_MS) return 'too old';
    return commitRows(deps, group, segment.id, segment.rows);
  };
  return insist(group, 'database away', commit, {
    ...deps.periods.databaseRetry,
    onFirst(error) {
      deps.log[retryLevel(error)]({ err: reasonOf(error) }, 'group commit waits for the database');
    },
  });
}

/** One statement for the group; on bad data it is halved until the single bad row stands alone. */
async function commitRows(
  deps: CommitGroupDeps,
  group: OutcomeGroup,
  segmentId: string | null,
  rows: readonly OutcomeRow[],
): Promise<string[]> {
  const fresh = new Map<string, RouteRow>();
  const routes = rows.map((row) => {
    const facts = row.usage.route;
    const known = deps.knownRoutes.get(facts);
    if (known !== undefined) return known;
    const id = routeId(facts);
    fresh.set(id, { id, facts });
    return id;
  });
  try {
    const result = await commitOutcomes(deps.db, {
      workerId: group.tenure.workerId,
      instance: deps.instance,
      segmentId,
      rows,
      routes,
      newRoutes: [...fresh.values()],
    });
    for (const route of fresh.values()) deps.knownRoutes.set(route.facts, route.id);
    if (result.committed < rows.length) {
      deps.log.warn({ lost: rows.length - result.committed }, 'outcomes dropped: the items are no longer ours');
    }
    return result.finished;
  } catch (error) {
    if (!isDataError(error)) throw error;
    if (rows.length > 1) {
      const half = rows.length >> 1;
      const left = await commitRows(deps, group, segmentId, rows.slice(0, half));
      return left.concat(await commitRows(deps, group, segmentId, rows.slice(half)));
    }
    const row = rows[0]!;
    if (row.error === INTERNAL && row.usage.attempts === 0) return [];
    deps.log.error(
      { err: reasonOf(error), batch: row.batchId, idx: row.idx },
      'one outcome is refused by the database',
    );
    return commitRows(deps, group, null, [minimalRow(group, row)]);
  }
}

const INTERNAL = 'batch item: internal';

function minimalRow(group: OutcomeGroup, row: OutcomeRow): OutcomeRow {
  const { item } = group.items.find((one) => one.item.batch.id === row.batchId && one.item.idx === row.idx)!;
  const usage = { ...unsentFacts(item, 'internal', 'internal'), attempts: 0 };
  return { ...row, state: 'discarded', error: INTERNAL, span: null, usage };
}
