import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { isAlive, readPidFile } from '../../lib/postgres/postmaster.ts';
import { ROOT } from '../support/root.ts';

let directory: string;
let demo: ChildProcess;
let postgres: number | null;

beforeEach(async () => {
  directory = await realpath(await mkdtemp(join(tmpdir(), 'relay-')));
  postgres = null;
});
afterEach(async () => {
  if (demo.exitCode === null && demo.signalCode === null) process.kill(-demo.pid!, 'SIGKILL');
  if (postgres !== null && isAlive(postgres)) process.kill(postgres, 'SIGQUIT');
  await rm(directory, { recursive: true, force: true, maxRetries: 10 });
});

/** Starts it in a group of its own, as a terminal would, with provider keys that must not be used. */
function start(): { said(text: string): Promise<void>; output(): string; ended: Promise<number | null> } {
  demo = spawn(process.execPath, [join(ROOT, 'demo/run.ts')], {
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { PATH: process.env.PATH, TMPDIR: directory, OPENAI_API_KEY: 'not-a-key', ANTHROPIC_API_KEY: 'not-a-key' },
  });
  let output = '';
  const looks = new Set<() => void>();
  for (const stream of [demo.stdout!, demo.stderr!]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk;
      for (const look of looks) look();
    });
  }
  const ended = once(demo, 'close').then(([code]) => code as number | null);
  return {
    output: () => output,
    ended,
    said: (text) => {
      const found = new Promise<void>((resolve) => {
        const look = () => output.includes(text) && resolve();
        looks.add(look);
        look();
      });
      const early = ended.then(() => {
        if (!output.includes(text)) throw new Error(`the demo ended: ${output}`);
      });
      return Promise.race([found, early]);
    },
  };
}

async function rememberPostgres(): Promise<number> {
  const [home] = await readdir(directory);
  postgres = (await readPidFile(join(directory, home!, 'data/postgres')))?.pid ?? null;
  expect(postgres).not.toBeNull();
  return postgres!;
}

describe('npm run demo', { timeout: 90_000 }, () => {
  test('runs a batch to its end, shows what came of it and leaves nothing behind', async () => {
    const { said, output, ended } = start();
    await said('answered 202');
    const pid = await rememberPostgres();
    expect(await ended, output()).toBe(0);
    expect(output()).toMatch(/300\/300 {2}running 0/);
    expect(output()).toMatch(/All items are final after [\d.]+ s: \d+ completed/);
    expect(output()).toContain('{"idx":0,"state":');
    expect(isAlive(pid)).toBe(false);
    expect(await readdir(directory)).toEqual([]);
  });

  test('cleans up after Ctrl-C in mid-run, also when it is pressed twice, and ends with status 1', async () => {
    const { said, output, ended } = start();
    await said('answered 202');
    const pid = await rememberPostgres();
    process.kill(-demo.pid!, 'SIGINT');
    process.kill(-demo.pid!, 'SIGINT');
    expect(await ended, output()).toBe(1);
    expect(output()).toContain('The demo failed: stopped by a signal');
    expect(output()).toContain('Everything is stopped and removed again.');
    expect(isAlive(pid)).toBe(false);
    expect(await readdir(directory)).toEqual([]);
  });
});
