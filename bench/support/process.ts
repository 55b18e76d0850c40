import { readFile, writeFile } from 'node:fs/promises';

const KIB = 1024;

/** Resident memory of a process, bytes. Linux only: null elsewhere. */
export async function residentBytes(pid: number): Promise<number | null> {
  return field(pid, 'VmRSS');
}

/**
 * Runs `work` and gives by how many bytes the process' resident memory peaked over where it was at the start; null where
 * the system does not tell.
 */
export async function peakGrowth(pid: number, work: () => Promise<unknown>): Promise<number | null> {
  // 5 sets the kernel's high-water mark back to the present value.
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
