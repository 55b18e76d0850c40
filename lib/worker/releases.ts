import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Retried, retryUntil } from '../base/retry.ts';
import type { Db } from '../db/database.ts';
import { retryLevel } from '../db/errors.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Outcome } from './item/outcome.ts';
import { isHeld, NO_TENURE, type Tenure } from './lease/tenure.ts';
import type { Periods } from './periods.ts';
import { releaseItems } from './release.sql.ts';

type Released = Extract<Outcome, { kind: 'released' }>;

const GROUP_ITEMS = 512;
const FULL_ITEMS = 4096;
const WINDOW_MS = 5;

export interface Releases {
  /** Releases an item of a tenure; items of one that has ended are forgotten, and so is all that was added in it. */
  add(tenure: Tenure, item: ClaimedItem, outcome: Released): void;
  full(): boolean;
  /** Resolves when everything added so far is recorded or dropped. */
  flush(): Promise<void>;
}

export interface ReleasesDeps {
  db: Db;
  log: Log;
  /** Pauses while the database does not take them. */
  retry: Periods['databaseRetry'];
  instance: string;
  onReleased(items: readonly ClaimedItem[], finished: readonly string[], soonestMs: number): void;
}

/** Collects items that go back to `available` and records them together; waits out database faults. */
export function createReleases(deps: ReleasesDeps): Releases {
  let tenure = NO_TENURE;
  let buffer: { item: ClaimedItem; outcome: Released }[] = [];
  let flying: Promise<void> | null = null;
  let timer: NodeJS.Timeout | null = null;

  const fly = async (): Promise<void> => {
    while (buffer.length > 0) {
      const mine = tenure;
      const group = buffer.slice(0, GROUP_ITEMS);
      const recorded = await record(group, mine);
      if (recorded.aborted || !isHeld(mine)) continue;
      const { finished } = recorded.value;
      buffer = buffer.slice(group.length);
      const soonest = group.reduce((least, { outcome }) => Math.min(least, outcome.delayMs), Number.POSITIVE_INFINITY);
      deps.onReleased(
        group.map(({ item }) => item),
        finished,
        soonest,
      );
    }
  };

  const record = (group: typeof buffer, { workerId, signal }: Tenure): Promise<Retried<{ finished: string[] }>> => {
    const rows = group.map(({ item, outcome }) => ({
      ...outcome,
      batchId: item.batch.id,
      idx: item.idx,
      claimNo: item.claimNo,
    }));
    return retryUntil(() => releaseItems(deps.db, workerId, deps.instance, rows), {
      ...deps.retry,
      signal,
      onFirst: (error) => deps.log[retryLevel(error)]({ err: reasonOf(error) }, 'release waits for the database'),
    });
  };

  const launch = (): Promise<void> => {
    if (timer !== null) clearTimeout(timer);
    timer = null;
    flying ??= fly().finally(() => {
      flying = null;
    });
    return flying;
  };

  const drop = () => {
    buffer = [];
  };

  return {
    add(of, item, outcome) {
      if (!isHeld(of)) return;
      if (of !== tenure) {
        tenure = of;
        tenure.signal.addEventListener('abort', drop, { once: true });
      }
      buffer.push({ item, outcome });
      timer ??= setTimeout(() => void launch(), WINDOW_MS);
    },
    full: () => buffer.length >= FULL_ITEMS,
    async flush() {
      while (buffer.length > 0) await launch();
    },
  };
}
