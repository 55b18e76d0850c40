import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import {
  PAYLOAD_KINDS,
  PayloadNotFound,
  type PayloadRef,
  type PayloadStore,
  payloadKey,
  StorageFull,
} from '../../../lib/payloads/payload-store.ts';
import { createSpaceReserve } from '../../../lib/payloads/space-reserve.ts';

let root: string;
let store: PayloadStore;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'relay-files-'));
  store = createFileStore(join(root, 'payloads'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const HOUR = 3_600_000;
const ref = (kind: PayloadRef['kind'] = 'segment', at = Date.now()): PayloadRef => ({ kind, id: uuidv7(at) });
const pathOf = (one: PayloadRef) => join(root, 'payloads', payloadKey(one));
const all = async <T>(source: AsyncIterable<T>): Promise<T[]> => {
  const out: T[] = [];
  for await (const one of source) out.push(one);
  return out;
};
async function* chunks(...parts: string[]) {
  for (const part of parts) yield Buffer.from(part);
}
/** Every file below the payload directory. */
async function files(): Promise<string[]> {
  const found = await readdir(join(root, 'payloads'), { recursive: true, withFileTypes: true });
  return found.filter((one) => one.isFile()).map((one) => one.name);
}

describe('the reserve of free space', () => {
  const MIB = 1024 * 1024;
  let space = { free: 0, total: 0 };
  const keeping = (bytes: number | null) =>
    createFileStore(
      join(root, 'payloads'),
      createSpaceReserve(root, bytes, async () => space),
    );
  const takes = async (of: PayloadStore, bytes = 1) => {
    const taken: string[] = [];
    for (const kind of PAYLOAD_KINDS) {
      const wrote = of.write(ref(kind), [Buffer.alloc(bytes)]);
      const streamed = of.writeStream(ref(kind), chunks('x'.repeat(bytes)));
      const ends = await Promise.allSettled([wrote, streamed]);
      for (const end of ends) if (end.status === 'rejected') expect(end.reason).toBeInstanceOf(StorageFull);
      if (ends.every((end) => end.status === 'fulfilled')) taken.push(kind);
      else expect(ends.map((end) => end.status)).toEqual(['rejected', 'rejected']);
    }
    return taken;
  };

  test('refuses new bodies first, results later, and answers of a group commit never', async () => {
    const small = keeping(100 * MIB);
    space = { free: 100 * MIB + 1, total: 1000 * MIB };
    expect(await takes(small)).toEqual([...PAYLOAD_KINDS]);
    space.free = 100 * MIB;
    expect(await takes(small)).toEqual(['segment', 'result', 'index', 'output']);
    space.free = 50 * MIB;
    expect(await takes(small)).toEqual(['segment']);
    space.free = 0;
    expect(await takes(small)).toEqual(['segment']);
    expect((await files()).filter((name) => name.startsWith('.tmp-'))).toEqual([]);
  });

  test('is 5 % of the file system and at most 1 GiB, unless it is given', async () => {
    space = { free: 5 * MIB, total: 100 * MIB };
    expect(await takes(keeping(null))).not.toContain('input');
    space.free++;
    expect(await takes(keeping(null))).toContain('input');
    space = { free: 1025 * MIB, total: 1_000_000 * MIB };
    expect(await takes(keeping(null))).toContain('input');
    space.free = 1023 * MIB;
    expect(await takes(keeping(null))).not.toContain('input');
    space.free = 0;
    expect(await takes(keeping(0), 0)).toContain('input');
  });

  test('ends a stream that would go far into it, and leaves nothing of it', async () => {
    space = { free: 40 * MIB, total: 1000 * MIB };
    const part = Buffer.alloc(MIB);
    async function* filling() {
      for (let i = 0; i < 100; i++) {
        space.free -= part.length;
        yield part;
      }
    }
    await expect(keeping(20 * MIB).writeStream(ref('upload'), filling())).rejects.toThrow(StorageFull);
    expect(space.free).toBeGreaterThan(0);
    expect(await files()).toEqual([]);
  });

  test('asks the file system itself', async () => {
    await mkdir(join(root, 'payloads'));
    const all = createFileStore(join(root, 'payloads'), createSpaceReserve(root, Number.MAX_SAFE_INTEGER));
    await expect(all.write(ref('input'), [Buffer.from('a')])).rejects.toThrow(StorageFull);
    await all.write(ref('segment'), [Buffer.from('a')]);
    const none = createFileStore(join(root, 'payloads'), createSpaceReserve(root, 1));
    await none.write(ref('input'), [Buffer.from('a')]);
  });

  test('refuses nothing where the space cannot be read', async () => {
    const blind = createSpaceReserve(join(root, 'nowhere'), Number.MAX_SAFE_INTEGER);
    await createFileStore(join(root, 'payloads'), blind).write(ref('input'), [Buffer.from('a')]);
  });
});

describe('a write', () => {
  test('joins its pieces in order, more than one system call takes, and leaves no temporary file', async () => {
    const one = ref();
    const pieces = Array.from({ length: 3000 }, (_, i) => Buffer.from(`${i},`));
    await store.write(one, pieces);
    expect(await readFile(pathOf(one), 'utf8')).toBe(pieces.join(''));
    expect(await files()).toEqual([one.id]);
    expect((await stat(pathOf(one))).mode & 0o077).toBe(0);
  });

  test('takes no pieces, and empty ones', async () => {
    const [none, empty] = [ref(), ref()];
    await store.write(none, []);
    await store.write(empty, [Buffer.alloc(0), Buffer.from('x'), Buffer.alloc(0)]);
    expect([await store.size(none), await store.size(empty)]).toEqual([0, 1]);
  });

  test('of a stream gives its length', async () => {
    const one = ref('input');
    const part = 'x'.repeat(300_000);
    expect(await store.writeStream(one, chunks('a', part, '', 'b'))).toBe(300_002);
    expect((await store.read(one, 0, 300_002)).toString()).toBe(`a${part}b`);
  });

  test('of a stream that breaks fails with the stream’s own error, whatever it is, and leaves nothing', async () => {
    for (const code of [undefined, 'ECONNRESET', 'ENOENT', 'ENOSPC']) {
      const broken = Object.assign(new Error('source broke'), code === undefined ? {} : { code });
      let starts = 0;
      async function* source() {
        starts++;
        yield Buffer.from('half');
        throw broken;
      }
      await expect(store.writeStream(ref('input'), source())).rejects.toBe(broken);
      expect(starts).toBe(1);
      expect(await files()).toEqual([]);
    }
  });

  test('makes its directory again when a sweep has taken it', async () => {
    const [first, second] = [ref(), ref()];
    await store.write(first, [Buffer.from('a')]);
    await rm(join(root, 'payloads'), { recursive: true });
    await store.write(second, [Buffer.from('b')]);
    await rm(join(root, 'payloads'), { recursive: true });
    const third = ref('input');
    expect(await store.writeStream(third, chunks('c', 'd'))).toBe(2);
    expect((await store.read(third, 0, 2)).toString()).toBe('cd');
  });

  test('that finds no directory, or no permission, is StorageFull and names no path', async () => {
    await mkdir(join(root, 'payloads'));
    await writeFile(join(root, 'payloads', 'segment'), '');
    const failure = await store.write(ref(), [Buffer.from('a')]).catch((error) => error);
    expect(failure).toBeInstanceOf(StorageFull);
    expect(failure.message).toBe('payload storage cannot be written: ENOTDIR');
    expect(failure.cause).toBeInstanceOf(Error);
    await expect(store.writeStream(ref(), chunks('a'))).rejects.toBeInstanceOf(StorageFull);
  });

  test('on a full disk is StorageFull, leaves no piece, and works again when there is room', async (context) => {
    const disk = join(root, 'disk');
    await mkdir(disk);
    const run = promisify(execFile);
    await run('mount', ['-t', 'tmpfs', '-o', 'size=256k', 'none', disk]).catch(() => context.skip('may not mount'));
    try {
      const small = createFileStore(disk);
      await small.write(ref(), [Buffer.alloc(1000)]);
      for (const write of [
        () => small.write(ref(), [Buffer.alloc(400_000)]),
        () => small.writeStream(ref(), chunks('x'.repeat(400_000))),
      ]) {
        const failure = await write().catch((error) => error);
        expect(failure).toBeInstanceOf(StorageFull);
        expect(failure.message).toBe('payload storage cannot be written: ENOSPC');
      }
      const left = await readdir(disk, { recursive: true, withFileTypes: true });
      expect(left.filter((one) => one.isFile())).toHaveLength(1);
      await small.write(ref(), [Buffer.alloc(100_000)]);
      await run('mount', ['-o', 'remount,ro', disk]);
      const readOnly = await small.write(ref(), [Buffer.from('a')]).catch((error) => error);
      expect(readOnly).toBeInstanceOf(StorageFull);
      expect(readOnly.message).toBe('payload storage cannot be written: EROFS');
    } finally {
      await run('umount', [disk]);
    }
  });

  test('never shows an object before it is whole', async () => {
    const one = ref('input');
    async function* watched() {
      yield Buffer.from('a'.repeat(600_000));
      await expect(store.size(one)).rejects.toBeInstanceOf(PayloadNotFound);
      yield Buffer.from('b');
    }
    await store.writeStream(one, watched());
    expect(await store.size(one)).toBe(600_001);
  });
});

describe('a read', () => {
  test('gives ranges exactly, as bytes and as a stream', async () => {
    const one = ref();
    const bytes = Buffer.from(Array.from({ length: 700_000 }, (_, i) => i % 251));
    await store.write(one, [bytes]);
    for (const [offset, length] of [
      [0, 700_000],
      [1, 1],
      [699_999, 1],
      [262_143, 262_146],
      [5, 0],
      [700_000, 0],
    ] as const) {
      const expected = bytes.subarray(offset, offset + length);
      expect((await store.read(one, offset, length)).equals(expected)).toBe(true);
      expect(Buffer.concat(await all(store.stream(one, offset, length))).equals(expected)).toBe(true);
    }
    expect(await store.size(one)).toBe(700_000);
  });

  test('of a range that is not wholly there throws, and is no not-found', async () => {
    const one = ref();
    await store.write(one, [Buffer.from('12345')]);
    for (const read of [() => store.read(one, 3, 3), () => all(store.stream(one, 3, 3)), () => store.read(one, 9, 1)]) {
      const failure = await read().catch((error) => error);
      expect(failure.message).toMatch(/^payload object is shorter than expected: segment\//);
      expect(failure).not.toBeInstanceOf(PayloadNotFound);
    }
  });

  test('of what is not there is PayloadNotFound', async () => {
    const one = ref();
    for (const read of [
      () => store.read(one, 0, 1),
      () => store.size(one),
      () => all(store.stream(one, 0, 1)),
    ] as (() => Promise<unknown>)[]) {
      await expect(read()).rejects.toBeInstanceOf(PayloadNotFound);
    }
  });

  test('that cannot be done for another reason gives the system’s error', async () => {
    const one = ref();
    await store.write(one, [Buffer.from('a')]);
    await rm(pathOf(one));
    await symlink(pathOf(one), pathOf(one));
    for (const read of [() => store.read(one, 0, 1), () => store.size(one), () => all(store.stream(one, 0, 1))]) {
      await expect((read as () => Promise<unknown>)()).rejects.toMatchObject({ code: 'ELOOP' });
    }
  });

  test('goes on in an object that is deleted under it', async () => {
    const one = ref();
    await store.write(one, [Buffer.alloc(2_000_000, 7)]);
    const stream = store.stream(one, 0, 2_000_000)[Symbol.asyncIterator]();
    let length = (await stream.next()).value!.length;
    await store.delete([one]);
    for (let next = await stream.next(); !next.done; next = await stream.next()) length += next.value.length;
    expect(length).toBe(2_000_000);
  });
});

describe('the list', () => {
  test('gives objects of one kind older than a moment, oldest first, and no foreign names', async () => {
    const now = Date.now();
    const made = [5 * HOUR, 4 * HOUR, HOUR, 10].map((age) => ref('segment', now - age));
    for (const one of [...made].reverse()) await store.write(one, [Buffer.from('a')]);
    await store.write(ref('input', now - 9 * HOUR), [Buffer.from('a')]);
    await writeFile(join(pathOf(made[0]!), '..', 'README'), '');
    await writeFile(join(root, 'payloads', 'segment', '0000'), '');
    expect(await all(store.list('segment', now - 2 * HOUR))).toEqual(made.slice(0, 2));
    expect(await all(store.list('segment', now + 1000))).toEqual(made);
    expect(await all(store.list('segment', now - 9 * HOUR))).toEqual([]);
    expect(await all(store.list('result', now))).toEqual([]);
    // Exactly at the moment is not before it.
    expect(await all(store.list('segment', now - 4 * HOUR))).toEqual(made.slice(0, 1));
  });

  test('a delete takes what is there and minds nothing that is not', async () => {
    const [one, other] = [ref(), ref()];
    await store.write(one, [Buffer.from('a')]);
    await store.delete([other, one, one]);
    expect(await files()).toEqual([]);
  });

  test('what writes that never ended left is removed once it is old, with empty directories, and nothing else', async () => {
    const now = Date.now();
    const [old, kept] = [ref('segment', now - 30 * HOUR), ref('segment', now - 40 * HOUR)];
    for (const one of [old, kept]) await store.write(one, [Buffer.from('a')]);
    const stale = join(pathOf(old), '..', '.tmp-left');
    await writeFile(stale, 'half');
    const fresh = ref('segment', now);
    await store.write(fresh, [Buffer.from('a')]);
    const writing = join(pathOf(fresh), '..', '.tmp-now');
    await writeFile(writing, 'half');
    await store.delete([old]);
    await store.removeStale('segment', now - 24 * HOUR);
    const directories = await readdir(join(root, 'payloads', 'segment'));
    expect(directories).toEqual([payloadKey(kept), payloadKey(fresh)].map((key) => key.split('/')[1]).sort());
    expect((await files()).sort()).toEqual(['.tmp-now', kept.id, fresh.id].sort());
    await store.removeStale('result', now);
  });
});

describe('the marker', () => {
  test('is null until it is written, and the first one stays', async () => {
    expect(await store.readMarker()).toBeNull();
    await store.writeMarker('one');
    expect(await store.readMarker()).toBe('one');
    await store.writeMarker('two');
    expect(await store.readMarker()).toBe('one');
    expect(await createFileStore(join(root, 'payloads')).readMarker()).toBe('one');
  });

  test('that cannot be read is an error, not an absence', async () => {
    await mkdir(join(root, 'payloads', 'store-id'), { recursive: true });
    await expect(store.readMarker()).rejects.toMatchObject({ code: 'EISDIR' });
  });
});
