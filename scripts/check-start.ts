import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, realpath, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { runningPostmaster } from '../lib/postgres/postmaster.ts';

// The quick start of the README as CI runs it: `npm start` on an empty data dir until the server is ready, then
// SIGTERM, after which nothing may be left running. If any of it fails, it ends with status 1 and a sentence.

const READY_MS = 120_000;
const STOP_MS = 40_000;

const home = await realpath(await mkdtemp(join(tmpdir(), 'relay-start-')));
const dataDir = join(home, 'data');
const port = await freePort();

// A group of its own, so that a hanging start can be ended as a whole. A terminal would signal the group, too.
const npm = spawn('npm', ['start', '--silent'], {
  detached: true,
  stdio: ['ignore', 'inherit', 'inherit'],
  env: {
    ...process.env,
    RELAY_PORT: String(port),
    RELAY_CONTROL_PORT: '0',
    RELAY_DATA_DIR: dataDir,
    RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
  },
});
const exited = once(npm, 'exit') as Promise<[number | null, NodeJS.Signals | null]>;
let fault: string | null = null;
try {
  fault = (await becomesReady()) ?? (await stops());
} finally {
  if (npm.exitCode === null && npm.signalCode === null) process.kill(-npm.pid!, 'SIGKILL');
  const pid = await runningPostmaster(join(dataDir, 'postgres'));
  if (pid !== null) {
    fault ??= 'Postgres was left running';
    process.kill(pid, 'SIGQUIT');
  }
  await rm(home, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 });
}
if (fault !== null) {
  process.stderr.write(`npm start: ${fault}\n`);
  process.exitCode = 1;
}

async function becomesReady(): Promise<string | null> {
  let last = 'nothing';
  for (const deadline = Date.now() + READY_MS; Date.now() < deadline; await delay(100)) {
    if (npm.exitCode !== null) return `ended with status ${npm.exitCode} before it was ready`;
    try {
      const response = await fetch(`http://127.0.0.1:${port}/healthz`);
      last = `${response.status} ${await response.text()}`;
      if (response.status === 200) return null;
    } catch {
      last = 'no connection';
    }
  }
  return `not ready after ${READY_MS / 1000} s, /healthz answered: ${last}`;
}

async function stops(): Promise<string | null> {
  npm.kill('SIGTERM');
  const outcome = await Promise.race([exited, delay(STOP_MS, null, { ref: false })]);
  return outcome === null ? `still running ${STOP_MS / 1000} s after SIGTERM` : null;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (address === null || typeof address === 'string') throw new Error('no port');
  return address.port;
}
