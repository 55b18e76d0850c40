import { expect, test } from 'vitest';
import { systemClock } from '../../../lib/base/clock.ts';
import { createTransition } from '../../../lib/base/modes.ts';
import type { Db } from '../../../lib/db/database.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import type { PayloadStore } from '../../../lib/payloads/payload-store.ts';
import { commitGroup, GROUP_TRANSITIONS, type GroupMode, isAway } from '../../../lib/worker/commit-group.ts';
import { refused } from '../../../lib/worker/item/outcome.ts';
import { beginTenure } from '../../../lib/worker/lease/tenure.ts';
import { strictLog } from '../../support/strict-log.ts';

const item = { batch: { id: 'b' } as BatchContext, idx: 0, claimNo: 1, attempts: 0 } as ClaimedItem;

interface World {
  /** The steps of each write of a segment before it succeeds. */
  store?: (() => void)[];
  /** The steps of each commit before it succeeds. */
  database?: (() => void)[];
  response?: Buffer | null;
}

const AT_ONCE = { min: 1, max: 1 };

const fail = () => {
  throw new Error('no');
};

/** Records one group, and returns the modes that it was in. */
async function record({ store = [], database = [], response = Buffer.from('{}') }: World, prepare?: Hooks) {
  const { tenure, end } = beginTenure('w');
  const world = { skewMs: 0, end };
  prepare?.(world);
  const modes: GroupMode[] = ['writing'];
  const transition = createTransition('group', GROUP_TRANSITIONS, strictLog());
  const writes: string[] = [];
  const outcome = refused(item, 'upstream_error', 'x');
  if (outcome.kind !== 'final') throw new Error('not final');
  const finished = await commitGroup(
    {
      db: {
        async query() {
          database.shift()?.();
          return { rows: [{ committed: 1, finished: 'b' }] };
        },
      } as unknown as Db,
      store: {
        async write({ id }: { id: string }) {
          store.shift()?.();
          writes.push(id);
        },
      } as unknown as PayloadStore,
      clock: { ...systemClock, now: () => Date.now() + world.skewMs },
      log: strictLog(),
      periods: { databaseRetry: AT_ONCE, storeRetry: AT_ONCE },
      instance: 'test',
      knownRoutes: new Map(),
    },
    {
      tenure,
      items: [{ item, outcome: { ...outcome, response } }],
      bytes: 0,
      go: (mode) => void modes.push(transition(modes.at(-1)!, mode)),
    },
  );
  return { modes, finished, writes };
}

type Hooks = (world: { skewMs: number; end(): void }) => void;

test('a group is written, committed and recorded', async () => {
  expect(await record({})).toMatchObject({ modes: ['writing', 'committing', 'recorded'], finished: ['b'] });
});

test('a group without answers writes nothing', async () => {
  const { modes, writes } = await record({ response: null });
  expect([modes, writes]).toEqual([['writing', 'committing', 'recorded'], []]);
});

test('is away from the first failure of the store to its success', async () => {
  const { modes, writes } = await record({ store: [fail, fail] });
  expect(modes).toEqual(['writing', 'store away', 'committing', 'recorded']);
  expect(writes).toHaveLength(1);
});

test('is away from the first failure of the database to its success', async () => {
  const { modes, writes } = await record({ database: [fail, fail] });
  expect(modes).toEqual(['writing', 'committing', 'database away', 'recorded']);
  expect(writes).toHaveLength(1);
});

test('writes a segment again that got too old while the database was away, and is away again when that fails', async () => {
  let grow = () => {};
  const ageing = () => {
    grow();
    fail();
  };
  const { modes, writes } = await record({ database: [ageing, fail], store: [() => {}, fail] }, (world) => {
    grow = () => {
      world.skewMs = 3_600_001;
    };
  });
  expect(modes).toEqual([
    ...['writing', 'committing', 'database away', 'writing', 'store away'],
    ...['committing', 'database away', 'recorded'],
  ]);
  expect(new Set(writes).size).toBe(2);
});

test.each<[during: string, world: (end: () => void) => World, modes: GroupMode[]]>([
  ['a write', (end) => ({ store: [end] }), ['writing', 'dropped']],
  [
    'a write that fails',
    (end) => ({
      store: [
        () => {
          end();
          fail();
        },
      ],
    }),
    ['writing', 'dropped'],
  ],
  ['a write that was refused before', (end) => ({ store: [fail, end] }), ['writing', 'store away', 'dropped']],
  ['a commit', (end) => ({ database: [end] }), ['writing', 'committing', 'dropped']],
  [
    'a commit that was refused before',
    (end) => ({ database: [fail, end] }),
    ['writing', 'committing', 'database away', 'dropped'],
  ],
])('is dropped when its tenure ends during %s', async (_, worldOf, modes) => {
  let end = () => {};
  const ended = await record(
    worldOf(() => end()),
    (world) => {
      end = world.end;
    },
  );
  expect([ended.modes, ended.finished]).toEqual([modes, []]);
});

test('only the two modes in which writes are refused hold up claims', () => {
  const modes = Object.keys(GROUP_TRANSITIONS) as GroupMode[];
  expect(modes.filter(isAway)).toEqual(['store away', 'database away']);
});
