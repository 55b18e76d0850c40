import { Worker } from 'node:worker_threads';
import { SMALL_THREAD } from '../runtime/v8.ts';
import { type ManyRead, payloadKey, type RangeRead } from './payload-store.ts';

/** Reads many short pieces of files in a thread of its own. */
export interface FileReader {
  /** As PayloadStore's `readMany`. */
  read(reads: readonly RangeRead[]): Promise<ManyRead | null>;
  close(): Promise<void>;
}

const ENTRY = new URL('./file-reader-thread.mjs', import.meta.url);
/** Memory of a group: a little more than what a reader of results has in work at a time. */
const SLOT_BYTES = 4.5 * 1024 * 1024;
/** Two groups for each of two readers at once; further ones read without the thread. */
const SLOTS = 4;
/**
 * A file on a local disk takes it 9 us. A read that takes more than this waits for a network, where several reads at a
 * time are faster than one after the other.
 */
const LIMIT_MS = 20;
const LIMIT_MS_EACH = 0.1;
/** So many groups go without the thread when it was too slow for one. */
const SLOW_GROUPS = 16;
/** When a group takes so much longer than its limit, the thread hangs in one file. */
const PATIENCE_MS = 250;
/** Threads in a row that ended before they read anything; after them no thread is started. */
const MOST_FAILURES = 3;

interface Group {
  settle(done: Uint8Array | null): void;
  slot: number;
  /** Nobody waits for it any more, but its memory is still written to. */
  abandoned: boolean;
}

interface Thread {
  worker: Worker;
  memory: Buffer;
  ready: boolean;
  free: number[];
  groups: Map<number, Group>;
}

/**
 * The thread starts with the first need. `read` returns null, at once or after PATIENCE_MS, until the thread runs,
 * while it hangs (a mount that cannot be reached), and when it is slow or busy with other readers. The caller then
 * reads by itself. A thread that dies returns null for what it had, and the next need starts another one. It keeps no
 * process alive that does not wait for it.
 *
 * Why: by Node's thread pool a file costs three trips (open, read, close), 50 us; by one message for hundreds of files
 * 9 us.
 */
export function createFileReader(root: string, entry: URL = ENTRY): FileReader {
  let thread: Thread | null = null;
  let closed = false;
  let failures = 0;
  let withoutThread = 0;
  let lastGroup = 0;

  const start = (): Thread => {
    const memory = new SharedArrayBuffer(SLOTS * SLOT_BYTES);
    const worker = new Worker(entry, {
      workerData: { root, memory },
      execArgv: [],
      env: {},
      resourceLimits: SMALL_THREAD,
    });
    const free = Array.from({ length: SLOTS }, (_, slot) => slot);
    const started: Thread = { worker, memory: Buffer.from(memory), ready: false, free, groups: new Map() };
    worker.unref();
    worker.on('message', (message: 'ready' | { group: number; done: Uint8Array; inTime: boolean }) => {
      if (message === 'ready') {
        started.ready = true;
        return;
      }
      failures = 0;
      if (!message.inTime) withoutThread = SLOW_GROUPS;
      settle(started, message.group, message.done);
    });
    worker.on('error', () => {}); // 'exit' follows
    worker.on('exit', () => {
      failures++;
      if (thread === started) thread = null;
      for (const group of started.groups.keys()) settle(started, group, null);
    });
    return started;
  };

  const settle = (from: Thread, number: number, done: Uint8Array | null) => {
    const group = from.groups.get(number)!;
    from.groups.delete(number);
    if (from.groups.size === 0) from.worker.unref();
    if (group.abandoned || done === null) from.free.push(group.slot);
    if (!group.abandoned) group.settle(done);
  };

  return {
    async read(reads) {
      if (closed || failures >= MOST_FAILURES) return null;
      thread ??= start();
      const used = thread;
      const hangs = [...used.groups.values()].some((group) => group.abandoned);
      if (!used.ready || hangs || used.free.length === 0) return null;
      if (withoutThread > 0) {
        withoutThread--;
        return null;
      }

      const ranges = new Int32Array(2 * reads.length);
      const keys: string[] = [];
      let bytes = 0;
      for (const { ref, offset, length } of reads) {
        bytes += length;
        if (bytes > SLOT_BYTES) break;
        ranges[2 * keys.length] = offset;
        ranges[2 * keys.length + 1] = length;
        keys.push(payloadKey(ref));
      }
      if (keys.length === 0) return null;
      const slot = used.free.pop()!;
      const at = slot * SLOT_BYTES;
      const limitMs = LIMIT_MS + LIMIT_MS_EACH * keys.length;
      const number = ++lastGroup;
      const done = await new Promise<Uint8Array | null>((resolve) => {
        const group: Group = { slot, abandoned: false, settle: resolve };
        const timer = setTimeout(() => {
          group.abandoned = true;
          resolve(null);
        }, limitMs + PATIENCE_MS);
        group.settle = (answer) => {
          clearTimeout(timer);
          resolve(answer);
        };
        used.groups.set(number, group);
        used.worker.ref();
        // One text: a thousand of them would be copied one by one.
        used.worker.postMessage({ group: number, at, limitMs, keys: keys.join('\n'), ranges });
      });
      if (done === null) return null;
      return { memory: used.memory.subarray(at, at + SLOT_BYTES), done, release: () => void used.free.push(slot) };
    },
    async close() {
      closed = true;
      // Not waited for: a thread that hangs in a file ends when the file answers.
      void thread?.worker.terminate();
    },
  };
}
