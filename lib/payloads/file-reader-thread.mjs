// The thread of file-reader.ts. It reads many short pieces of files in turn into memory that it shares with the main
// thread. Plain JavaScript: to strip types a thread loads a compiler of its own, which cost 27 MB and 0.2 s.
import { closeSync, openSync, readSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';

/** @type {{ root: string, memory: SharedArrayBuffer }} */
const { root, memory } = workerData;
const target = Buffer.from(memory);

/**
 * Reads one group. `keys` has a line for each read, `ranges` its offset and its length. The bytes go to `at`, without
 * gaps. Reads that are not done after `limitMs` are left to readers that can wait in parallel. The answer says which
 * reads are done, and whether all were tried.
 *
 * @param {{ group: number, at: number, limitMs: number, keys: string, ranges: Int32Array }} message
 */
function readGroup({ group, at, limitMs, keys: lines, ranges }) {
  const keys = lines.split('\n');
  const done = new Uint8Array(keys.length);
  const end = performance.now() + limitMs;
  let i = 0;
  for (; i < keys.length && performance.now() < end; i++) {
    const length = ranges[2 * i + 1];
    if (readWhole(`${root}/${keys[i]}`, ranges[2 * i], length, at)) done[i] = 1;
    at += length;
  }
  parentPort.postMessage({ group, done, inTime: i === keys.length });
}

/** @returns {boolean} false for any failure: the piece is then read elsewhere. */
function readWhole(path, offset, length, at) {
  let file = -1;
  try {
    file = openSync(path, 'r');
    let read = 0;
    while (read < length) {
      const count = readSync(file, target, at + read, length - read, offset + read);
      if (count === 0) return false;
      read += count;
    }
    return true;
  } catch {
    return false;
  } finally {
    if (file !== -1) closeSync(file);
  }
}

parentPort.on('message', readGroup);
parentPort.postMessage('ready');
