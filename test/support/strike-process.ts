import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Sends a process a signal in the very moment in which an object of a payload kind is being written; ends with 0 then. In a
 * process of its own, because such a moment may be over before a busy test looks.
 *
 *   node test/support/strike-process.ts FOLDER PID SIGNAL
 */
const [folder = '', pid, signal] = process.argv.slice(2);
const WITHIN_MS = 120_000;
const pause = new Int32Array(new SharedArrayBuffer(4));

/** None where there is nothing (any more). */
function look<T>(read: () => T[]): T[] {
  try {
    return read();
  } catch {
    return [];
  }
}

function isWriting(): boolean {
  return look(() => readdirSync(folder)).some((hour) =>
    look(() => readdirSync(join(folder, hour))).some((name) => {
      return name.startsWith('.tmp-') && look(() => [statSync(join(folder, hour, name)).size]).some((size) => size > 0);
    }),
  );
}

process.stdout.write('looking\n');
while (!isWriting()) {
  if (performance.now() > WITHIN_MS) process.exit(1);
  Atomics.wait(pause, 0, 0, 1);
}
process.kill(Number(pid), signal);
