import { mkdtemp, rm, truncate } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import type { BatchContext, ClaimedItem } from '../../../lib/model/batch.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import { type PayloadStore, payloadKey } from '../../../lib/payloads/payload-store.ts';
import { prepareItems } from '../../../lib/worker/item/prepare.ts';
import { loadBodies } from '../../../lib/worker/load.ts';

let root: string;
let store: PayloadStore;
let reads: [offset: number, length: number][];

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'relay-load-'));
  const files = createFileStore(root);
  reads = [];
  store = {
    ...files,
    read(ref, offset, length) {
      reads.push([offset, length]);
      return files.read(ref, offset, length);
    },
  };
});
afterEach(() => rm(root, { recursive: true, force: true }));

const BYTES = Buffer.from(Array.from({ length: 300_000 }, (_, i) => (i * 7) % 256));

async function input(bytes = BYTES): Promise<string> {
  const id = uuidv7();
  await store.write({ kind: 'input', id }, [bytes]);
  return id;
}

function item(
  inputId: string,
  idx: number,
  offset: number,
  length: number,
  more: Partial<ClaimedItem> = {},
): ClaimedItem {
  return {
    batch: { id: `b-${inputId}`, inputId } as BatchContext,
    idx,
    claimNo: 1,
    inputOffset: offset,
    inputLength: length,
    inputCrc: crc32(BYTES.subarray(offset, offset + length)),
    attempts: 0,
    rounds: 0,
    waitedMs: 0,
    loadFailures: 0,
    failedKey: null,
    failedRounds: 0,
    failingForMs: null,
    ...more,
  };
}

test('gives each item its own bytes, in order, whatever lies between them', async () => {
  const ids = [await input(), await input()];
  const spans = fc.array(
    fc.record({ of: fc.nat(1), offset: fc.nat(290_000), length: fc.nat(9_000), failed: fc.boolean() }),
    { maxLength: 12 },
  );
  await fc.assert(
    fc.asyncProperty(spans, async (given) => {
      const items = given.map(({ of, offset, length, failed }, idx) =>
        item(ids[of]!, idx, offset, length, { loadFailures: failed ? 1 : 0 }),
      );
      const loaded = await loadBodies(store, items);
      expect(loaded.map((one) => one.item)).toEqual(items);
      for (const one of loaded) {
        const { inputOffset, inputLength } = one.item;
        const expected = BYTES.subarray(inputOffset, inputOffset + inputLength);
        expect('body' in one && one.body.equals(expected)).toBe(true);
      }
    }),
    { numRuns: 50 },
  );
});

test('neighbours are read together, what lies far apart is not', async () => {
  const id = await input();
  await loadBodies(store, [item(id, 0, 10, 5), item(id, 1, 16, 5), item(id, 2, 60_000, 5), item(id, 3, 200_000, 5)]);
  expect(reads).toEqual([
    [10, 59_995],
    [200_000, 5],
  ]);
});

test('a damaged item says so, the others are there', async () => {
  const id = await input();
  const loaded = await loadBodies(store, [item(id, 0, 0, 9), item(id, 1, 10, 9, { inputCrc: 1 }), item(id, 2, 20, 9)]);
  expect(loaded.map((one) => ('failure' in one ? one.failure : one.body.length))).toEqual([9, 'checksum mismatch', 9]);
});

test('what is lost, or unreadable, has a reason without a path', async () => {
  const failures = await loadBodies(store, [item(uuidv7(), 0, 0, 9)]);
  expect(failures).toEqual([{ item: failures[0]!.item, failure: 'not found' }]);
  const id = await input();
  await truncate(join(root, payloadKey({ kind: 'input', id })), 15);
  const [first, second] = [item(id, 0, 0, 9), item(id, 1, 10, 9)];
  const reasons = async (items: ClaimedItem[]) =>
    (await loadBodies(store, items)).map((one) => ('failure' in one ? one.failure : 'read'));
  expect(await reasons([first, second])).toEqual(['read failed', 'read failed']);
  // The next time each is read alone, so that only the one that is really lost stays so.
  for (const one of [first, second]) one.loadFailures = 1;
  expect(await reasons([first, second])).toEqual(['read', 'read failed']);
});

test('an unreadable input is tried five times over at least a minute, then it is the item’s own failure', async () => {
  let waited = 0;
  const never = () => Promise.reject(new Error('not called'));
  for (let loadFailures = 0; loadFailures < 5; loadFailures++) {
    const one = item('x', 0, 0, 9, { loadFailures, attempts: 2 });
    const [result] = await prepareItems({ judge: never, pool: null, limits: null } as never, [
      { item: one, failure: 'EIO' },
    ]);
    const outcome = (result as { outcome: { kind: string; delayMs: number } }).outcome;
    if (loadFailures < 4) {
      expect(outcome).toMatchObject({ kind: 'released', loadFailed: true, attempts: 2 });
      waited += outcome.delayMs;
      continue;
    }
    expect(outcome).toMatchObject({
      state: 'discarded',
      error: 'batch item: load input: EIO',
      usage: { errorKind: 'internal', errorMessage: 'load input: EIO', status: 0, attempts: 2 },
    });
  }
  expect(waited).toBeGreaterThanOrEqual(60_000);
});
