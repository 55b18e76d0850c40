import { Buffer } from 'node:buffer';
import { setImmediate } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import { expect, test } from 'vitest';
import {
  checksum,
  includesInSteps,
  inTurns,
  nextTurn,
  pacer,
  STEP_BYTES,
  type Steps,
} from '../../../lib/base/turns.ts';

/** Work of so many steps, each of which takes longer than a turn may. */
function* slow(steps: number, onStep: () => void): Steps<string> {
  for (let i = 0; i < steps; i++) {
    onStep();
    const from = performance.now();
    while (performance.now() - from < 3);
    yield;
  }
  return 'done';
}

/** Counts how often the event loop goes round while `work` runs. */
async function turnsOf(work: (turns: () => number) => Promise<unknown>): Promise<number> {
  let turns = 0;
  let isOver = false;
  const counting = (async () => {
    while (!isOver) {
      await setImmediate();
      turns++;
    }
  })();
  await work(() => turns);
  isOver = true;
  await counting;
  return turns;
}

test('of all that wait for a turn, one goes on each time the event loop goes round', async () => {
  const at: number[] = [];
  await turnsOf((turns) => Promise.all([1, 2, 3, 4].map(() => nextTurn().then(() => at.push(turns())))));
  expect(new Set(at).size).toBe(4);
});

test('work on many bytes begins in the next turn, and goes on in another one after each long step', async () => {
  const at: number[] = [];
  await turnsOf(async (turns) => {
    const work = inTurns(
      slow(3, () => at.push(turns())),
      STEP_BYTES + 1,
    );
    expect(at).toEqual([]);
    expect(await work).toBe('done');
  });
  expect(new Set(at).size).toBe(3);
});

test('work on few bytes begins at once', async () => {
  let begun = false;
  const work = inTurns(
    slow(1, () => {
      begun = true;
    }),
    STEP_BYTES,
  );
  expect(begun).toBe(true);
  expect(await work).toBe('done');
});

test('parts of one work take no longer turns together than each alone', async () => {
  const at: number[] = [];
  await turnsOf(async (turns) => {
    const pace = pacer();
    for (let i = 0; i < 3; i++) await pace(slow(1, () => at.push(turns())));
  });
  expect(new Set(at).size).toBe(3);
});

test('a text is found wherever it stands, over the end of a step too', async () => {
  const text = 'sk-secret';
  for (const at of [0, 1, STEP_BYTES - 9, STEP_BYTES - 8, STEP_BYTES - 1, STEP_BYTES, 2 * STEP_BYTES - 3]) {
    const bytes = Buffer.alloc(3 * STEP_BYTES, 'sk-secre');
    expect(await inTurns(includesInSteps(bytes, text), 0)).toBe(false);
    bytes.write(text, at);
    expect(await inTurns(includesInSteps(bytes, text), 0)).toBe(true);
  }
});

test.each([0, 10, STEP_BYTES, 1024 * 1024, 1024 * 1024 + 1, 3_000_001])(
  'a checksum of %d bytes is their CRC32',
  async (size) => {
    const bytes = Buffer.alloc(size, 'abcdefg');
    expect(await checksum(bytes)).toBe(crc32(bytes));
  },
);
