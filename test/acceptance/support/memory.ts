import { readFile } from 'node:fs/promises';
import type { ServerProcess } from '../../support/server.ts';

/** The most memory that the process has had, in MiB. Only on Linux. */
export async function peakMib({ pid }: ServerProcess): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(/VmHWM:\s+(\d+) kB/.exec(status)![1]) / 1024;
}
