import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

/** An obedient, fast upstream in a process of its own (upstream-process.ts). */
export interface SpawnedUpstream {
  url: string;
  port: number;
  pid: number;
  /** `users`: how often each body `"user"` was sent; empty without `countUsers`. */
  stats(): Promise<{
    requests: number;
    connections: number;
    open: number;
    maxOpen: number;
    users: Record<string, number>;
  }>;
  stop(): Promise<void>;
}

/** Starts it and waits until it listens. `status` is what every call gets, `answerBytes` the least length of its body. */
export async function spawnUpstream(
  options: { port?: number; delayMs?: number; status?: number; countUsers?: boolean; answerBytes?: number } = {},
): Promise<SpawnedUpstream> {
  const script = fileURLToPath(new URL('./upstream-process.ts', import.meta.url));
  const args = ['--port', String(options.port ?? 0), '--delay-ms', String(options.delayMs ?? 0)];
  args.push('--status', String(options.status ?? 200), '--answer-bytes', String(options.answerBytes ?? 0));
  if (options.countUsers) args.push('--count-users');
  const child = spawn(process.execPath, [script, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  const exited = once(child, 'exit');
  const lines = createInterface({ input: child.stdout });
  const first = await Promise.race([once(lines, 'line'), exited.then(() => null)]);
  if (first === null) throw new Error(`the upstream process ended at once, code ${child.exitCode}`);
  const port = Number(first[0]);
  const url = `http://127.0.0.1:${port}`;
  return {
    url,
    port,
    pid: child.pid!,
    async stats() {
      const response = await fetch(`${url}/stats`);
      return (await response.json()) as Awaited<ReturnType<SpawnedUpstream['stats']>>;
    },
    async stop() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}
