import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, open, rm, truncate, unlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createFileReader, type FileReader } from '../../../lib/payloads/file-reader.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import { type ManyRead, type PayloadRef, payloadKey, type RangeRead } from '../../../lib/payloads/payload-store.ts';

const ENDING = new URL('../../support/ending-reader.mjs', import.meta.url);
const BYTES = 3000;

interface Piece {
  read: RangeRead;
  path: string;
  bytes: Buffer;
}

let root: string;
let reader: FileReader;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'relay-reader-'));
  reader = createFileReader(root);
});
afterEach(async () => {
  await reader.close();
  await rm(root, { recursive: true, force: true });
});

/** Some objects, of each a piece in its middle. */
async function pieces(count: number, length = BYTES): Promise<Piece[]> {
  return Promise.all(
    Array.from({ length: count }, async (_, i) => {
      const ref: PayloadRef = { kind: 'segment', id: uuidv7() };
      const path = join(root, payloadKey(ref));
      const whole = randomBytes(length + 200);
      await mkdir(dirname(path), { recursive: true });
      await writeFile(path, whole);
      return { read: { ref, offset: i % 100, length }, path, bytes: whole.subarray(i % 100, (i % 100) + length) };
    }),
  );
}

const readsOf = (all: Piece[]) => all.map(({ read }) => read);

/** The thread's answer, as soon as it runs (again). */
async function many(reads: readonly RangeRead[], from = reader): Promise<ManyRead> {
  for (;;) {
    const given = await from.read(reads);
    if (given) return given;
    await new Promise(setImmediate);
  }
}

/** Checks each read that is done, and returns the positions of those that are not. */
function left(given: ManyRead, all: Piece[]): number[] {
  const missing: number[] = [];
  let at = 0;
  for (const [i, { bytes }] of all.entries()) {
    if (given.done[i] !== 1) missing.push(i);
    else expect(given.memory.subarray(at, at + bytes.length).equals(bytes)).toBe(true);
    at += bytes.length;
  }
  return missing;
}

test('gives nothing until its thread runs, and then many pieces at once', async () => {
  const all = await pieces(300);
  expect(await reader.read(readsOf(all))).toBe(null);
  expect(left(await many(readsOf(all)), all)).toEqual([]);
});

test('leaves what is missing, cut or no file to others, and gives the rest', async () => {
  const all = await pieces(20);
  await unlink(all[3]!.path);
  await truncate(all[0]!.path, 10);
  await truncate(all[7]!.path, 0);
  await unlink(all[19]!.path);
  await mkdir(all[19]!.path);
  const given = await many(readsOf(all));
  expect(left(given, all)).toEqual([0, 3, 7, 19]);
});

test('leaves what there is no room for to others', async () => {
  const all = await pieces(6, 1024 * 1024);
  expect(left(await many(readsOf(all)), all)).toEqual([4, 5]);
  const { ref } = all[0]!.read;
  expect(await reader.read([{ ref, offset: 0, length: 5 * 1024 * 1024 }])).toBe(null);
  expect(await reader.read([])).toBe(null);
});

test('does not write over what was not given back, and gives nothing when all of its memory is in use', async () => {
  const groups = await Promise.all(Array.from({ length: 4 }, () => pieces(10)));
  const given: ManyRead[] = [];
  for (const group of groups) given.push(await many(readsOf(group)));
  for (const [i, group] of groups.entries()) expect(left(given[i]!, group)).toEqual([]);
  expect(await reader.read(readsOf(groups[0]!))).toBe(null);
  given[2]!.release();
  const again = await reader.read(readsOf(groups[0]!));
  expect(left(again!, groups[0]!)).toEqual([]);
  expect(left(given[3]!, groups[3]!)).toEqual([]);
});

test('a thread that ends in the middle of a group gives nothing for it, and another one takes its place', async () => {
  await reader.close();
  reader = createFileReader(root, ENDING);
  const all = await pieces(20);
  await many(readsOf(all)).then((given) => given.release());
  await writeFile(join(root, 'end'), '');
  expect(await Promise.all([reader.read(readsOf(all)), reader.read(readsOf(all))])).toEqual([null, null]);
  await rm(join(root, 'end'));
  expect(left(await many(readsOf(all)), all)).toEqual([]);
});

test('a thread that cannot be started is not started for ever, and gives nothing', async () => {
  await reader.close();
  reader = createFileReader(root, new URL('./there-is-none.mjs', import.meta.url));
  const all = await pieces(10);
  for (let i = 0; i < 2000; i++) {
    expect(await reader.read(readsOf(all))).toBe(null);
    await new Promise(setImmediate);
  }
});

test.skipIf(process.platform === 'win32')(
  'a file that does not answer holds up neither others nor the next reads',
  async () => {
    const all = await pieces(20);
    await many(readsOf(all)).then((given) => given.release());
    await unlink(all[5]!.path);
    execFileSync('mkfifo', [all[5]!.path]); // opening it to read waits for a writer
    const hanging = reader.read(readsOf(all));
    const behind = reader.read(readsOf(all.slice(0, 2)));
    expect(await hanging).toBe(null);
    expect(await behind).toBe(null);
    expect(await reader.read(readsOf(all))).toBe(null);
    await (await open(all[5]!.path, 'w')).close();
    await unlink(all[5]!.path);
    expect(left(await many(readsOf(all)), all)).toEqual([5]);
  },
);

test('a closed store reads no more by its thread, but one by one', async () => {
  const all = await pieces(10);
  const store = createFileStore(root);
  const from = { read: store.readMany!, close: store.close };
  const given = await many(readsOf(all), from);
  const waiting = store.readMany!(readsOf(all));
  await store.close();
  expect([null, given.done.length]).toContain((await waiting)?.done.length ?? null);
  expect(await store.readMany!(readsOf(all))).toBe(null);
  expect(left(given, all)).toEqual([]);
  const { ref, offset, length } = all[0]!.read;
  expect((await store.read(ref, offset, length)).equals(all[0]!.bytes)).toBe(true);
});

test('keeps no process alive that waits for nothing', () => {
  const program = `
    import { createFileReader } from '${new URL('../../../lib/payloads/file-reader.ts', import.meta.url).href}';
    const reader = createFileReader('/nowhere');
    const reads = [{ ref: { kind: 'segment', id: '${uuidv7()}' }, offset: 0, length: 1 }];
    let given = null;
    while (given === null) {
      given = await reader.read(reads);
      await new Promise(setImmediate);
    }
    console.log(given.done[0]);`;
  const args = ['--input-type=module', '-e', program];
  expect(execFileSync(process.execPath, args, { encoding: 'utf8' })).toBe('0\n');
});
