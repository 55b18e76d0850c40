import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { ROOT } from './root.ts';

const PROGRAM = join(ROOT, 'bin/server.ts');
export const FASTER_TIME = join(ROOT, 'test/support/faster-time.mjs');
const QUICK_PROGRAM = join(ROOT, 'test/support/quick-server-process.ts');
const READY_WITHIN_MS = 60_000;

/** One line of the server's JSON log. */
export interface LogLine {
  level: string;
  msg: string;
  [field: string]: unknown;
}

/** A server started as users start it: a process of its own, in a process group of its own. */
export interface ServerProcess {
  /** Of the inference port. */
  url: string;
  controlUrl: string;
  pid: number;
  child: ChildProcess;
  /** Everything logged so far. */
  log: LogLine[];
  /** Everything written to standard error so far. */
  errors(): string;
  /** Resolves when a line with this message has been logged. */
  logged(message: string): Promise<void>;
  /** Sends a signal to the process alone, or to its whole group. */
  signal(signal: NodeJS.Signals, to?: 'process' | 'group'): void;
  /** Resolves with the exit code; null when a signal ended it. */
  exited: Promise<number | null>;
  /** True until it has ended. */
  running(): boolean;
  /** kill -9, to the process alone: an embedded Postgres lives on. Resolves when it has ended. */
  kill(): Promise<void>;
  /** SIGTERM, and waits for the end. Returns the exit code. */
  stop(): Promise<number | null>;
  /** Resolves when `/healthz` answers 200; rejects when the process ends first. */
  ready(): Promise<void>;
}

/** Options of `startServer`. */
export interface ServerOptions {
  /** Directory of catalogue, data dir and payloads; a second start in it is the same instance. */
  home: string;
  /** Null: embedded Postgres in the data dir. */
  dsn: string | null;
  /** YAML. */
  catalog: string;
  /** Default: `<home>/payloads`. */
  payloadDir?: string;
  env?: Record<string, string>;
  /** True: a worker's periods are a fifth of the service's own (`quick-server-process.ts`). */
  quick?: boolean;
  /** How many times as fast every timer of it runs, time limits of statements and calls too (`faster-time.mjs`). */
  speed?: number;
  /** False returns at once, for servers that are not going to be ready. */
  waitUntilReady?: boolean;
}

/** When the test run is killed this pipe ends without a word, and the server (with its Postgres) goes too. */
const CLEAN_UP = `
read -r finished && exit
kill -KILL -- "-$0"
if [ -n "$1" ] && read -r pid <"$1/postgres/postmaster.pid"; then kill -QUIT "$pid"; fi`;

/** Starts the server on free ports and waits until it is ready. */
export async function startServer(options: ServerOptions): Promise<ServerProcess> {
  const { home, dsn } = options;
  const [port, controlPort] = [await freePort(), await freePort()];
  const catalogPath = join(home, 'catalog.yaml');
  await mkdir(home, { recursive: true });
  await writeFile(catalogPath, options.catalog);
  const dataDir = join(home, 'data');
  const child = spawn(
    process.execPath,
    [...(options.speed ? ['--import', FASTER_TIME] : []), options.quick ? QUICK_PROGRAM : PROGRAM],
    {
      cwd: home,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        PATH: process.env.PATH,
        HOME: home,
        RELAY_PORT: String(port),
        RELAY_CONTROL_PORT: String(controlPort),
        RELAY_DATA_DIR: dataDir,
        RELAY_BATCH_PAYLOAD_DIR: options.payloadDir ?? join(home, 'payloads'),
        RELAY_CATALOG: catalogPath,
        RELAY_ADMIN_TOKEN: 'test-admin',
        ...(dsn === null ? {} : { RELAY_PG_DSN: dsn }),
        ...(options.speed ? { RELAY_TEST_SPEED: String(options.speed) } : {}),
        ...options.env,
      },
    },
  );
  const watcher = spawn('sh', ['-c', CLEAN_UP, String(child.pid), dsn === null ? dataDir : ''], {
    detached: true,
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  watcher.unref();

  const log: LogLine[] = [];
  const waiting = new Set<() => void>();
  let errors = '';
  let ended = false;
  createInterface({ input: child.stdout! }).on('line', (line) => {
    try {
      log.push(JSON.parse(line) as LogLine);
    } catch {
      log.push({ level: '', msg: line });
    }
    for (const look of waiting) look();
  });
  child.stderr!.on('data', (chunk: Buffer) => {
    errors += chunk.toString();
  });
  const exited = once(child, 'exit').then(([code]) => {
    ended = true;
    watcher.stdin.end('finished\n');
    return code as number | null;
  });

  const server: ServerProcess = {
    url: `http://127.0.0.1:${port}`,
    controlUrl: `http://127.0.0.1:${controlPort}`,
    pid: child.pid!,
    child,
    log,
    errors: () => errors,
    logged: (message) =>
      new Promise((resolve) => {
        const look = () => {
          if (!log.some((line) => line.msg === message)) return;
          waiting.delete(look);
          resolve();
        };
        waiting.add(look);
        look();
      }),
    signal(signal, to = 'process') {
      if (!ended) process.kill(to === 'group' ? -child.pid! : child.pid!, signal);
    },
    exited,
    running: () => !ended,
    async kill() {
      server.signal('SIGKILL');
      await exited;
    },
    stop() {
      server.signal('SIGTERM');
      return exited;
    },
    async ready() {
      const deadline = performance.now() + READY_WITHIN_MS;
      for (;;) {
        if (ended) throw new Error(`the server ended: ${errors}`);
        const answer = await fetch(`${server.url}/healthz`).catch(() => null);
        await answer?.arrayBuffer();
        if (answer?.status === 200) return;
        if (performance.now() > deadline) throw new Error(`the server is not ready: ${JSON.stringify(log.at(-1))}`);
        await new Promise((resolve) => setTimeout(resolve, 25));
      }
    },
  };
  if (options.waitUntilReady !== false) await server.ready();
  return server;
}

/**
 * A port of 127.0.0.1 that nothing listens on, below those that the system hands out by itself: one of these may be
 * somebody else's by the time the server listens.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 15_000 + Math.floor(Math.random() * 17_000);
    const server = createServer().listen(port, '127.0.0.1');
    const free = await once(server, 'listening').then(
      () => true,
      () => false,
    );
    if (!free) continue;
    server.close();
    await once(server, 'close');
    return port;
  }
}
