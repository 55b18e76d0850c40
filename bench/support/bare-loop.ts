import { execFile } from 'node:child_process';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { Pool } from 'undici';
import { itemBody, UPSTREAM_KEY } from './items.ts';

/**
 * The comparison for drains: the same bodies over the same number of connections, only by undici, in a process of its
 * own. Returns milliseconds for `items` calls, after `warmUp` of them that do not count.
 */
export async function bareLoop(
  upstreamUrl: string,
  connections: number,
  items: number,
  warmUp: number,
): Promise<number> {
  const args = [import.meta.filename, upstreamUrl, String(connections), String(items), String(warmUp)];
  const { stdout } = await promisify(execFile)(process.execPath, args);
  return Number(stdout);
}

async function loop(pool: Pool, bodies: readonly string[], connections: number): Promise<void> {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${UPSTREAM_KEY}` };
  let next = 0;
  const one = async () => {
    while (next < bodies.length) {
      const body = bodies[next++]!;
      const response = await pool.request({ method: 'POST', path: '/v1/chat/completions', headers, body });
      const answer = await response.body.arrayBuffer();
      if (response.statusCode !== 200 || answer.byteLength === 0) throw new Error(`status ${response.statusCode}`);
    }
  };
  await Promise.all(Array.from({ length: connections }, one));
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const url = process.argv[2]!;
  const [connections, items, warmUp] = process.argv.slice(3).map(Number) as [number, number, number];
  const pool = new Pool(url, { connections });
  const bodies = Array.from({ length: items }, (_, i) => itemBody(i));
  await loop(pool, bodies.slice(0, warmUp), connections);
  const start = performance.now();
  await loop(pool, bodies, connections);
  process.stdout.write(String(performance.now() - start));
  await pool.close();
}
