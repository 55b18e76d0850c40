// The thread of lib/payloads/file-reader.ts, but it ends in the middle of a group as long as there is a file `end` in its root.
import { existsSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';

parentPort.on('message', () => {
  if (existsSync(`${workerData.root}/end`)) process.exit(1);
});
await import('../../lib/payloads/file-reader-thread.mjs');
