import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { cp, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { runningPostmaster } from '../../lib/postgres/postmaster.ts';
import { ROOT } from '../support/root.ts';
import { freePort } from '../support/server.ts';

const readme = readFileSync(join(ROOT, 'README.md'), 'utf8');

/** The `sh` blocks of a section, as they stand. */
function commands(section: string): string[] {
  const text = readme.slice(readme.indexOf(`\n## ${section}\n`) + 1).split(/\n## /)[0]!;
  return [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map((match) => match[1]!);
}

let directory: string;
let group: number | null = null;

beforeEach(async () => {
  directory = await realpath(await mkdtemp(join(tmpdir(), 'relay-')));
});
afterEach(async () => {
  try {
    if (group !== null) process.kill(-group, 'SIGKILL');
  } catch {
    // all of it has ended, as it should
  }
  const postgres = await runningPostmaster(join(directory, 'relay-data/postgres'));
  if (postgres !== null) process.kill(postgres, 'SIGQUIT');
  await rm(directory, { recursive: true, force: true, maxRetries: 10 });
});

describe('README.md', () => {
  test('shows calls that work as they stand, from the start to the end', { timeout: 120_000 }, async () => {
    const ports = { 8080: await freePort(), 8081: await freePort(), 9000: await freePort() };
    const script = [
      'set -eo pipefail',
      // The commands stand for a checkout: ports, and what lies in it, are the test's own.
      `export RELAY_PORT=${ports[8080]} RELAY_CONTROL_PORT=${ports[8081]} DEMO_UPSTREAM_PORT=${ports[9000]}`,
      `export RELAY_DATA_DIR=${directory}/relay-data RELAY_BATCH_PAYLOAD_DIR=${directory}/payloads`,
      ...commands('The API'),
    ]
      .join('\n')
      .replaceAll('127.0.0.1:8080', `127.0.0.1:${ports[8080]}`)
      .replaceAll('127.0.0.1:8081', `127.0.0.1:${ports[8081]}`)
      .replaceAll('demo/catalog', `${directory}/catalog`)
      .replaceAll('cat relay-data/', `cat ${directory}/relay-data/`);
    await cp(join(ROOT, 'demo/catalog'), join(directory, 'catalog'), { recursive: true });
    for (const name of await readdir(join(directory, 'catalog'))) {
      const path = join(directory, 'catalog', name);
      await writeFile(path, (await readFile(path, 'utf8')).replaceAll('127.0.0.1:9000', `127.0.0.1:${ports[9000]}`));
    }

    const shell = spawn('bash', ['-c', script], {
      cwd: ROOT,
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { PATH: process.env.PATH, HOME: process.env.HOME },
    });
    group = shell.pid!;
    let out = '';
    shell.stdout.on('data', (chunk: Buffer) => (out += chunk));
    shell.stderr.on('data', (chunk: Buffer) => (out += chunk));
    const closed = once(shell, 'close');
    const [status] = (await once(shell, 'exit')) as [number | null];
    expect(status, out).toBe(0); // of a script that fails, the service would hold the pipe open
    await closed;
    expect(out).toMatch(/"status":"queued","total_items":3\}/);
    expect(out).toMatch(/"CompletedAt":"[^"]+Z".*"counts":\{[^}]*"discarded":[1-3]/);
    expect(out).toContain(
      String.raw`{"idx":2,"state":"discarded","error":"batch item: route \"no-such-model\": model not found"}],"next_after":null}`,
    );
    expect(out).toContain('"has_more":false');
    expect(out).toMatch(/\{"rows":\[\{"group":\{"model":/);
    expect(out).toContain('{"status":"cancelled"}');
    expect(out).toMatch(/\{"id":"[^"]+","deleted":true\}/);
    expect(out).toMatch(/"status":"queued","total_items":1\}/);
    expect(out).toMatch(/\{"id":"batch_req_[^"]+","custom_id":"hello","response":\{"status_code":200,/);
    expect(out).toContain('{"custom_id":"hello","result":{"type":"succeeded","message":{');
    expect(out).toContain('"kind":"Policy"');
    expect(out).toContain('relay_batch_items_total{state="discarded"} ');
    expect(out).toMatch(/0 created, 0 updated, 0 deleted, \d+ unchanged/);
    expect(await runningPostmaster(join(directory, 'relay-data/postgres'))).toBeNull();
  });

  test('has its other commands run by .ci/run', () => {
    const others = ['Quick start', 'Operations', 'Development']
      .flatMap(commands)
      .flatMap((block) => block.trim().split('\n'));
    expect(others).toEqual(['npm run demo', 'npm start', 'npm run bench -- slice start', 'npm run check', 'npm test']);
    const all = [...readme.matchAll(/^```sh$/gm)].length;
    expect(commands('The API').length + ['Quick start', 'Operations', 'Development'].flatMap(commands).length).toBe(
      all,
    );
    const ci = readFileSync(join(ROOT, '.ci/run'), 'utf8');
    for (const step of [
      'npm run --silent demo',
      'check:start',
      'npm run --silent bench -- slice start',
      'tests tests 1440 test ', // `npm run test`
      'check:',
    ]) {
      expect(ci).toContain(step);
    }
  });

  test('links to files that exist', async () => {
    for (const [, path] of readme.matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g)) {
      await expect(readFile(join(ROOT, path!)), path).resolves.toBeDefined();
    }
  });
});
