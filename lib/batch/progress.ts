import type { Db } from '../db/database.ts';
import type { WaitReason } from '../model/batch.ts';
import { type ProgressRow, readProgress, type WaitRow } from './progress.sql.ts';

/** The first that is true. */
type ProgressState = 'failed' | 'cancelled' | 'ended' | 'finalizing' | 'validating' | 'paused' | 'waiting' | 'running';

/** Why some of the items that wait do so. */
interface ProgressReason {
  reason: WaitReason;
  text: string | null;
  items: number;
  since: string | null;
  next_try_at: string | null;
  /** For the administrator alone: the host key that the item released last waits for, or was called with. */
  host_key?: string | null;
}

/** How far a batch is, and why it does not move ("Progress" in docs/spec/native-api.md). Times are RFC 3339. */
export interface Progress {
  id: string;
  state: ProgressState;
  total: number;
  done: number;
  completed: number;
  discarded: number;
  cancelled: number;
  running: number;
  waiting: number;
  rate: null;
  eta: null;
  started_at: string | null;
  cost_nanos: null;
  unpriced: null;
  max_cost_nanos: null;
  execution: 'live';
  paused_by: null;
  expires_at: string | null;
  reasons: ProgressReason[];
}

export interface ProgressDeps {
  db: Db;
  workers: {
    /** Silence after which a worker counts as gone. */
    leaseSeconds: number;
    /** Items run in invocations on Lambda, which come and go. */
    onLambda: boolean;
  };
}

/** Which batch, and for whom. */
export interface ProgressKey {
  /** A UUID. */
  id: string;
  /** Null: the administrator asks. */
  owner: string | null;
  /** The surface that the form of the id names; null for a bare UUID. */
  surface: string | null;
}

/** On Lambda the sweep starts a worker each minute while work is due. */
const INVOCATION_GRACE_MS = 300_000;

const TEXTS = {
  no_worker: 'no worker with slots is running',
  no_invocation: 'no worker was invoked for 5 minutes',
  storage_full: 'no worker can record answers: the payload store or the database takes no writes',
  fair_share: 'free slots go to batches and owners with fewer running items',
  slots: 'waits for a free slot',
} as const;

/** The progress of a batch under its public id, which `publicId` makes; null when no batch fits. */
export async function getProgress(
  { db, workers }: ProgressDeps,
  key: ProgressKey,
  publicId: (surface: string) => string,
): Promise<Progress | null> {
  const row = await readProgress(db, key, workers.leaseSeconds);
  return row && progressOf(row, publicId(row.surface), { onLambda: workers.onLambda, showKeys: key.owner === null });
}

function progressOf(row: ProgressRow, id: string, options: { onLambda: boolean; showKeys: boolean }): Progress {
  const {
    completed = 0,
    discarded = 0,
    cancelled = 0,
  } = row.counts ?? {
    completed: row.completed_items,
    discarded: row.discarded_items,
    cancelled: row.cancelled_items,
  };
  const waiting = (row.waits ?? []).reduce((sum, { items }) => sum + items, row.fresh);
  const running = row.open_items - waiting;
  return {
    id,
    state: stateOf(row, running),
    total: row.total_items,
    done: completed + discarded + cancelled,
    completed,
    discarded,
    cancelled,
    running,
    waiting,
    rate: null,
    eta: null,
    started_at: rfc3339(row.started_at),
    cost_nanos: null,
    unpriced: null,
    max_cost_nanos: null,
    execution: 'live',
    paused_by: null,
    expires_at: rfc3339(row.expires_at),
    reasons: waiting === 0 ? [] : reasonsOf(row, waiting, options.onLambda).map(shownTo(options.showKeys)),
  };
}

function stateOf(row: ProgressRow, running: number): ProgressState {
  if (row.final_status === 'failed') return 'failed';
  if (row.cancelled) return 'cancelled';
  if (hasEnded(row)) return 'ended';
  if (row.status === null) return 'validating';
  if (row.completed_at !== null) return 'finalizing';
  return running === 0 ? 'waiting' : 'running';
}

/** The SDK surfaces show results when they are written; the native results can be read at any time. */
function hasEnded({ surface, completed_at, results_id, ended_at }: ProgressRow): boolean {
  if (surface === 'openai') return ended_at !== null;
  return completed_at !== null && (surface === 'relay' || results_id !== null);
}

type Reason = ProgressReason & { host_key: string | null };

/** One reason for all of them when nobody can work; else that of each release, and one for those that need a slot. */
function reasonsOf(row: ProgressRow, waiting: number, onLambda: boolean): Reason[] {
  const all = (reason: WaitReason, text: string, since: Date): Reason[] => [
    { reason, text, items: waiting, since: later(since, row.created_at), next_try_at: null, host_key: null },
  ];
  if (row.workers === 0) {
    const isInvoked = onLambda || row.last_was_invocation === true;
    const since = row.last_worker_at ?? row.created_at;
    const silentMs = row.now.getTime() - Math.max(since.getTime(), row.created_at.getTime());
    if (!isInvoked) return all('no_worker', TEXTS.no_worker, since);
    if (silentMs >= INVOCATION_GRACE_MS) return all('no_worker', TEXTS.no_invocation, since);
  } else if (row.blocked === row.workers) {
    return all('storage_full', TEXTS.storage_full, row.blocked_since ?? row.created_at);
  }
  const paused = (row.waits ?? []).flatMap((wait) => (wait.reason === null ? [] : [pausedReason(wait.reason, wait)]));
  const due = row.waits?.find(({ reason }) => reason === null);
  const needSlots = row.fresh + (due?.items ?? 0);
  if (needSlots === 0) return paused;
  const reason = row.passed_over ? 'fair_share' : 'slots';
  const since = row.fresh > 0 ? row.created_at.toISOString() : utc(due!.since);
  return [...paused, { reason, text: TEXTS[reason], items: needSlots, since, next_try_at: null, host_key: null }];
}

function pausedReason(reason: WaitReason, { text, items, since, next_try_at, host_key }: WaitRow): Reason {
  return { reason, text, items, since: utc(since), next_try_at: utc(next_try_at), host_key };
}

function shownTo(administrator: boolean): (reason: Reason) => ProgressReason {
  return ({ host_key, ...reason }) => (administrator ? { ...reason, host_key } : reason);
}

function later(one: Date, other: Date): string {
  return new Date(Math.max(one.getTime(), other.getTime())).toISOString();
}

/** Times inside of JSON come with the offset of the session. */
function utc(time: string | null): string | null {
  return time === null ? null : new Date(time).toISOString();
}

function rfc3339(time: Date | null): string | null {
  return time === null ? null : time.toISOString();
}
