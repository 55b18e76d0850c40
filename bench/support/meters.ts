import type { BenchServer } from './bed.ts';

/** Reads a server's metrics once. The function returns the value of a metric without labels, NaN if it is missing. */
export async function readMeters(server: BenchServer): Promise<(name: string) => number> {
  const response = await fetch(`${server.controlUrl}/metrics`, { headers: { authorization: 'Bearer test-admin' } });
  const text = await response.text();
  return (name) => Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);
}

/** Returns one metric of a server, as it is now. */
export async function meter(server: BenchServer, name: string): Promise<number> {
  return (await readMeters(server))(name);
}
