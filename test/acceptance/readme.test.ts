import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { cp, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { DEMO_UPSTREAM, startDemoUpstream } from '../../demo/upstream.ts';
import { runningPostmaster } from '../../lib/postgres/postmaster.ts';
import { ROOT } from '../support/root.ts';
import { freePort } from '../support/server.ts';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const readme = read('README.md');
const api = read('docs/api.md');

/** The `sh` blocks of a document, or of one of its sections, as they are printed. */
function commands(document: string, section?: string): string[] {
  const from = section === undefined ? 0 : document.indexOf(`\n## ${section}\n`);
  expect(from, section).not.toBe(-1);
  const text = section === undefined ? document : document.slice(from + 1).split(/\n## /)[0]!;
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
    // The whole group has ended, as it should.
  }
  const postgres = await runningPostmaster(join(directory, 'relay-data/postgres'));
  if (postgres !== null) process.kill(postgres, 'SIGQUIT');
  await rm(directory, { recursive: true, force: true, maxRetries: 10 });
});

interface Substitutes {
  /** A catalogue of the checkout. The commands use a copy of it. */
  catalog: string;
  /** Addresses in that catalogue, and what replaces them in the copy. */
  upstreams: [printed: string, used: string][];
  env?: Record<string, string>;
}

/**
 * Runs printed commands as one script, and returns its output. The commands are written for a fresh checkout. So ports, the
 * files that they write, and upstreams are replaced by the test's own; everything else runs as it is printed.
 */
async function run(blocks: string[], { catalog, upstreams, env }: Substitutes): Promise<string> {
  const ports = { 8080: await freePort(), 8081: await freePort() };
  const script = ['set -eo pipefail', ...blocks]
    .join('\n')
    .replaceAll('127.0.0.1:8080', `127.0.0.1:${ports[8080]}`)
    .replaceAll('127.0.0.1:8081', `127.0.0.1:${ports[8081]}`)
    .replaceAll(`RELAY_CATALOG=${catalog} `, `RELAY_CATALOG=${directory}/catalog `)
    .replaceAll(`apply ${catalog}\n`, `apply ${directory}/catalog\n`)
    .replaceAll('cat relay-data/', `cat ${directory}/relay-data/`)
    .replaceAll('> relay.log', `> ${directory}/relay.log`);
  await cp(join(ROOT, catalog), join(directory, 'catalog'), { recursive: true });
  for (const name of await readdir(join(directory, 'catalog'))) {
    const path = join(directory, 'catalog', name);
    let text = await readFile(path, 'utf8');
    for (const [printed, used] of upstreams) text = text.replaceAll(printed, used);
    await writeFile(path, text);
  }
  const shell = spawn('bash', ['-c', script], {
    cwd: ROOT,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      HOME: process.env.HOME,
      RELAY_PORT: String(ports[8080]),
      RELAY_CONTROL_PORT: String(ports[8081]),
      RELAY_DATA_DIR: join(directory, 'relay-data'),
      RELAY_BATCH_PAYLOAD_DIR: join(directory, 'payloads'),
      ...env,
    },
  });
  group = shell.pid!;
  let out = '';
  shell.stdout.on('data', (chunk: Buffer) => (out += chunk));
  shell.stderr.on('data', (chunk: Buffer) => (out += chunk));
  const closed = once(shell, 'close');
  const [status] = (await once(shell, 'exit')) as [number | null];
  expect(status, out).toBe(0); // When a script fails, its service holds the pipe open: 'close' would not come.
  await closed;
  expect(await runningPostmaster(join(directory, 'relay-data/postgres'))).toBeNull();
  return out;
}

describe('docs/api.md', () => {
  test('shows calls that work as they are printed, from the start to the end', { timeout: 120_000 }, async () => {
    const port = await freePort();
    const out = await run(commands(api), {
      catalog: 'demo/catalog',
      upstreams: [['127.0.0.1:9000', `127.0.0.1:${port}`]],
      env: { DEMO_UPSTREAM_PORT: String(port) },
    });
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
  });
});

describe('README.md', () => {
  test('runs a first batch with a real provider by the printed lines', { timeout: 120_000 }, async () => {
    // In place of OpenAI the bundled upstream answers. The host of the starter catalogue is the only thing that changes.
    const upstream = await startDemoUpstream({ ...DEMO_UPSTREAM, rate429: 0, rate500: 0 });
    try {
      const { port } = upstream.address() as AddressInfo;
      const out = await run([...commands(readme, 'A first batch with a real provider'), 'kill %1', 'wait'], {
        catalog: 'catalog',
        upstreams: [['https://api.openai.com', `http://127.0.0.1:${port}`]],
        env: { OPENAI_API_KEY: 'any' },
      });
      expect(out).toMatch(/\{"results":\[\{"idx":0,"state":"completed","response":\{"id":"chatcmpl-/);
      expect(out).toContain('"model":"gpt-4o-mini"');
    } finally {
      upstream.closeAllConnections();
      upstream.close();
    }
  });

  test('has its other commands run by .ci/run', () => {
    const sections = ['Quick start', 'Operations', 'Development'];
    const others = sections.flatMap((section) => commands(readme, section));
    expect(others.flatMap((block) => block.trim().split('\n'))).toEqual([
      'npm run demo',
      'npm start',
      'npm run bench -- slice start',
      'npm run check',
      'npm test',
    ]);
    const first = commands(readme, 'A first batch with a real provider');
    expect(first.length + others.length).toBe(commands(readme).length);
    const ci = read('.ci/run');
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

  test('is short', () => {
    expect(readme.split('\n').length).toBeLessThan(200);
  });
});

test.each(['README.md', 'CONTRIBUTING.md'])('%s links to files that exist', (file) => {
  for (const [, path] of read(file).matchAll(/\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)/g)) {
    expect(() => read(path!), path).not.toThrow();
  }
});
