import { readFile, writeFile } from 'node:fs/promises';

const KIB = 1024;

/** Returns the resident memory of a process in bytes. Linux only: null elsewhere. */
export async function residentBytes(pid: number): Promise<number | null> {
  return field(pid, 'VmRSS');
}

/**
 * Runs `work` and returns by how many bytes the process' resident memory peaked above its size at the start. Null if
 * the system does not report it.
 */
export async function peakGrowth(pid: number, work: () => Promise<unknown>): Promise<number | null> {
  // 5 resets the kernel's high-water mark to the present value.
  await writeFile(`/proc/${pid}/clear_refs`, '5').catch(() => {});
  const before = await residentBytes(pid);
  await work();
  const peak = await field(pid, 'VmHWM');
  return before === null || peak === null ? null : peak - before;
}

async function field(pid: number, name: string): Promise<number | null> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '');
  const found = new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(status);
  return found ? Number(found[1]) * KIB : null;
}
