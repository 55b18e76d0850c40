import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';
import { createBodyBudget } from '../../lib/base/body-budget.ts';
import { createLog } from '../../lib/base/log.ts';
import { serve } from '../../lib/http/node.ts';
import { createFileStore } from '../../lib/payloads/file-store.ts';

/**
 * The comparison for results: a process of its own streams one file of the payload store through the same adapter.
 * Returns its URL and how to end it.
 */
export async function serveFile(
  payloadDir: string,
  resultsId: string,
): Promise<{ url: string; stop(): Promise<void> }> {
  const child = spawn(process.execPath, [import.meta.filename, payloadDir, resultsId], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const exited = once(child, 'exit');
  const first = await Promise.race([once(createInterface({ input: child.stdout }), 'line'), exited.then(() => null)]);
  if (first === null) throw new Error('the file server ended at once');
  return {
    url: `http://127.0.0.1:${first[0]}/file`,
    async stop() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const store = createFileStore(process.argv[2]!);
  const ref = { kind: 'result', id: process.argv[3]! } as const;
  const run = async () => ({
    statusCode: 200,
    headers: { 'content-type': 'application/json' },
    length: null,
    object: null,
    stream: store.stream(ref, 0, await store.size(ref)),
  });
  const { port } = await serve({
    host: '127.0.0.1',
    port: 0,
    routes: [{ method: 'GET', pattern: '/file', run }],
    maxBodyBytes: 0,
    bodies: createBodyBudget(0),
    log: createLog('silent'),
  });
  process.stdout.write(`${port}\n`);
}
