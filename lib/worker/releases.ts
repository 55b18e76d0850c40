import { sleep } from '../base/clock.ts';
import { reasonOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Db } from '../db/database.ts';
import type { ClaimedItem } from '../model/batch.ts';
import type { Outcome } from './item/outcome.ts';
import { releaseItems } from './release.sql.ts';

type Released = Extract<Outcome, { kind: 'released' }>;

const GROUP_ITEMS = 512;
const FULL_ITEMS = 4096;
const WINDOW_MS = 5;

export interface Releases {
  add(item: ClaimedItem, outcome: Released): void;
  full(): boolean;
  /** Resolves when everything added so far is recorded or dropped. */
  flush(): Promise<void>;
  drop(): void;
  useWorker(id: string): void;
}

export interface ReleasesDeps {
  db: Db;
  log: Log;
  instance: string;
  onReleased(items: readonly ClaimedItem[], finished: readonly string[], soonestMs: number): void;
}

/** Collects items that go back to `available` and records them together; waits out database faults. */
export function createReleases(deps: ReleasesDeps): Releases {
  let workerId = '';
  let generation = 0;
  let buffer: { item: ClaimedItem; outcome: Released }[] = [];
  let flying: Promise<void> | null = null;
  let timer: NodeJS.Timeout | null = null;

  const fly = async (): Promise<void> => {
    while (buffer.length > 0) {
      const mine = generation;
      const group = buffer.slice(0, GROUP_ITEMS);
      const finished = await record(group, mine);
      if (generation !== mine) continue;
      buffer = buffer.slice(group.length);
      const soonest = group.reduce((least, { outcome }) => Math.min(least, outcome.delayMs), Number.POSITIVE_INFINITY);
      deps.onReleased(
        group.map(({ item }) => item),
        finished,
        soonest,
      );
    }
  };

  const record = async (group: typeof buffer, mine: number): Promise<string[]> => {
    const rows = group.map(({ item, outcome }) => ({
      ...outcome,
      batchId: item.batch.id,
      idx: item.idx,
      claimNo: item.claimNo,
    }));
    for (let failures = 0; generation === mine; failures++) {
      try {
        return (await releaseItems(deps.db, workerId, deps.instance, rows)).finished;
      } catch (error) {
        if (failures === 0) deps.log.warn({ err: reasonOf(error) }, 'release waits for the database');
        await sleep(Math.min(1000, 20 * 2 ** failures));
      }
    }
    return [];
  };

  const launch = (): Promise<void> => {
    if (timer !== null) clearTimeout(timer);
    timer = null;
    flying ??= fly().finally(() => {
      flying = null;
    });
    return flying;
  };

  return {
    add(item, outcome) {
      buffer.push({ item, outcome });
      timer ??= setTimeout(() => void launch(), WINDOW_MS);
    },
    full: () => buffer.length >= FULL_ITEMS,
    async flush() {
      while (buffer.length > 0) await launch();
    },
    drop() {
      generation++;
      buffer = [];
    },
    useWorker(id) {
      workerId = id;
    },
  };
}
