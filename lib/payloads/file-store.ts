import { close as closeFile, constants, createReadStream, open as openFile, read as readFileAt } from 'node:fs';
import { type FileHandle, mkdir, open, readdir, readFile, rename, rm, rmdir, stat, unlink } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { isUuid, uuidv7, uuidv7Time } from '../base/clock.ts';
import { createFileReader } from './file-reader.ts';
import {
  PayloadNotFound,
  type PayloadRef,
  type PayloadStore,
  payloadHour,
  payloadKey,
  StorageFull,
} from './payload-store.ts';
import { createSpaceReserve, type SpaceReserve } from './space-reserve.ts';

const MARKER = 'store-id';
const TEMP = '.tmp-';
const STREAM_CHUNK = 256 * 1024;
const MAX_MADE = 100;
/** A stream looks at the free space again after so many bytes. */
const CLAIM_BYTES = 16 * 1024 * 1024;

/**
 * The payload store on a filesystem, also on NFS. A write goes to an exclusive temporary file in the final directory (a
 * rename across directories is not atomic everywhere). It is fsynced and renamed, and the directory and every new
 * parent are fsynced. A name is never looked up before its row is committed: NFS clients cache that it is missing.
 * Every write error becomes StorageFull: callers answer 503 or wait, and write a new file from memory. `reserve` is the
 * free space that is kept for answers; without it nothing is.
 */
export function createFileStore(root: string, reserve: SpaceReserve = createSpaceReserve(root, 0)): PayloadStore {
  const madeDirectories = new Set<string>();
  const reader = createFileReader(root);

  // Device and inode of the directory that held the marker. An unmounted volume leaves another directory under the same
  // name; what is written there would be lost when the mount returns.
  let identity: string | null = null;
  let marker: string | null = null;
  const identityOf = async () => {
    const { dev, ino } = await stat(root);
    return `${dev}:${ino}`;
  };

  const write = async (path: string, fill: (file: FileHandle) => Promise<void>): Promise<void> => {
    let began = false;
    const start = (file: FileHandle) => {
      began = true;
      return fill(file);
    };
    for (let attempt = 1; ; attempt++) {
      try {
        if (identity !== null && (await identityOf()) !== identity) {
          throw Object.assign(new Error('the payload directory is another one'), { code: 'ENODEV' });
        }
        return await writeOnce(root, madeDirectories, path, start);
      } catch (error) {
        // The hour's directory was swept: it is made again once, unless the source is spent already.
        if (attempt === 1 && !began && codeOf(error) === 'ENOENT') madeDirectories.clear();
        else if (error instanceof StorageFull) throw error;
        else
          throw new StorageFull(`payload storage cannot be written: ${codeOf(error) ?? 'unknown'}`, { cause: error });
      }
    }
  };

  return {
    streamBytes: 2 * STREAM_CHUNK,
    async write(ref, pieces) {
      await reserve.claim(ref.kind, lengthOf(pieces));
      await write(join(root, payloadKey(ref)), (file) => writeAll(file, pieces));
    },
    async writeStream(ref, source) {
      let length = 0;
      let broken: { error: unknown } | null = null;
      async function* watched() {
        try {
          yield* source;
        } catch (error) {
          broken = { error };
          throw error;
        }
      }
      await write(join(root, payloadKey(ref)), async (file) => {
        length = await writeChunks(file, watched(), (bytes) => reserve.claim(ref.kind, bytes));
      }).catch((error) => {
        // A broken source is the caller's error, not the disk's.
        throw broken === null ? error : broken.error;
      });
      return length;
    },
    async read(ref, offset, length, target) {
      const key = payloadKey(ref);
      const buffer = target ?? Buffer.allocUnsafeSlow(length);
      const done = await readFully(join(root, key), buffer, offset).catch(notFound(ref));
      if (done < length) throw new Error(`payload object is shorter than expected: ${key}`);
      return buffer;
    },
    readMany: reader.read,
    async *stream(ref, offset, length) {
      if (length === 0) return;
      const source = createReadStream(join(root, payloadKey(ref)), {
        start: offset,
        end: offset + length - 1,
        highWaterMark: STREAM_CHUNK,
      });
      let done = 0;
      try {
        for await (const chunk of source) {
          done += (chunk as Buffer).length;
          yield chunk as Buffer;
        }
      } catch (error) {
        notFound(ref)(error);
      }
      if (done !== length) throw new Error(`payload object is shorter than expected: ${payloadKey(ref)}`);
    },
    size: async (ref) => (await stat(join(root, payloadKey(ref))).catch(notFound(ref))).size,
    async delete(refs) {
      for (const ref of refs) await unlink(join(root, payloadKey(ref))).catch(ignore('ENOENT', 'ENOTDIR'));
    },
    async *list(kind, beforeMs) {
      const hours = await readdir(join(root, kind)).catch(none('ENOENT'));
      for (const hour of hours.sort()) {
        if (hour > payloadHour(beforeMs)) break;
        const names = await readdir(join(root, kind, hour)).catch(none('ENOENT', 'ENOTDIR'));
        for (const id of names.sort()) if (isUuid(id) && uuidv7Time(id) < beforeMs) yield { kind, id };
      }
    },
    async removeStale(kind, beforeMs) {
      const hours = await readdir(join(root, kind)).catch(none('ENOENT'));
      for (const hour of hours) {
        if (hour >= payloadHour(beforeMs)) continue;
        const directory = join(root, kind, hour);
        for (const name of await readdir(directory).catch(none('ENOENT', 'ENOTDIR'))) {
          if (name.startsWith(TEMP)) await unlink(join(directory, name)).catch(ignore('ENOENT'));
        }
        await rmdir(directory).catch(ignore('ENOTEMPTY', 'ENOENT', 'ENOTDIR', 'EEXIST'));
      }
    },
    async readMarker() {
      const text = await readFile(join(root, MARKER), 'utf8').catch(none('ENOENT'));
      const found = typeof text === 'string' ? text.trim() : null;
      if (found !== null && (identity === null || found === marker)) identity = await identityOf();
      marker ??= found;
      return found;
    },
    async writeMarker(id) {
      const present = await stat(join(root, MARKER)).catch(none('ENOENT'));
      if (Array.isArray(present)) await write(join(root, MARKER), (file) => writeAll(file, [Buffer.from(`${id}\n`)]));
    },
    close: reader.close,
  };
}

/**
 * Fills the buffer from `offset`, up to the end of the file, and returns the number of bytes. With callbacks and a bare
 * descriptor a file of 10 KB takes 15 us of CPU, by a FileHandle 38, and results come from thousands of them.
 */
function readFully(path: string, buffer: Buffer, offset: number): Promise<number> {
  return new Promise((resolve, reject) => {
    openFile(path, 'r', (failure, file) => {
      if (failure) return reject(failure);
      const end = (error: Error | null, done: number) => {
        closeFile(file, () => {});
        if (error) reject(error);
        else resolve(done);
      };
      const next = (done: number) => {
        readFileAt(file, buffer, done, buffer.length - done, offset + done, (error, count) => {
          if (error || count === 0 || done + count === buffer.length) end(error, done + (count ?? 0));
          else next(done + count);
        });
      };
      next(0);
    });
  });
}

async function writeOnce(root: string, made: Set<string>, path: string, fill: (f: FileHandle) => Promise<void>) {
  const directory = dirname(path);
  if (!made.has(directory)) {
    await makeDirectory(directory, root);
    // Each hour has new ones. Without a limit the set would grow as long as the process lives.
    if (made.size >= MAX_MADE) made.clear();
    made.add(directory);
  }
  const temporary = join(directory, TEMP + uuidv7());
  const file = await open(temporary, constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY, 0o600);
  try {
    try {
      await fill(file);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await rm(temporary, { force: true }).catch(() => {});
    throw error;
  }
  await syncDirectory(directory);
}

function lengthOf(pieces: readonly Uint8Array[]): number {
  return pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
}

async function writeAll(file: FileHandle, pieces: readonly Uint8Array[]): Promise<void> {
  // One writev for all pieces. The kernel accepts at most IOV_MAX (1024) buffers and may write less than requested.
  for (let at = 0; at < pieces.length; at += 1024) {
    const group = pieces.slice(at, at + 1024);
    const { bytesWritten } = await file.writev(group);
    if (bytesWritten < lengthOf(group)) await file.writeFile(Buffer.concat(group).subarray(bytesWritten));
  }
}

/** Returns how many bytes were written. `claim` comes before the first bytes, and again each CLAIM_BYTES. */
async function writeChunks(
  file: FileHandle,
  source: AsyncIterable<Uint8Array>,
  claim: (bytes: number) => Promise<void>,
): Promise<number> {
  let length = 0;
  let claimed = 0;
  let pending: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of source) {
    pending.push(chunk);
    bytes += chunk.byteLength;
    length += chunk.byteLength;
    if (bytes >= STREAM_CHUNK || pending.length >= 1024) {
      if (length > claimed) {
        await claim(bytes);
        claimed = length + CLAIM_BYTES;
      }
      await writeAll(file, pending);
      pending = [];
      bytes = 0;
    }
  }
  if (pending.length > 0) {
    if (length > claimed) await claim(bytes);
    await writeAll(file, pending);
  }
  return length;
}

async function makeDirectory(directory: string, root: string): Promise<void> {
  const first = await mkdir(directory, { recursive: true, mode: 0o700 });
  if (first === undefined) return;
  // Each parent that got a new entry is fsynced, from the directory's parent up to the parent of the first new one.
  for (let at = dirname(directory); ; at = dirname(at)) {
    await syncDirectory(at);
    if (at === dirname(first) || at === dirname(root) || at === dirname(at)) return;
  }
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : undefined;
}

function notFound(ref: PayloadRef): (error: unknown) => never {
  return (error) => {
    if (codeOf(error) === 'ENOENT') throw new PayloadNotFound(payloadKey(ref), { cause: error });
    throw error;
  };
}

function ignore(...codes: string[]): (error: unknown) => void {
  return (error) => {
    if (!codes.includes(codeOf(error) ?? '')) throw error;
  };
}

function none(...codes: string[]): (error: unknown) => never[] {
  return (error) => {
    ignore(...codes)(error);
    return [];
  };
}
