import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Server, startServer } from '../bin/serve.ts';
import { loadConfig } from '../lib/app/config.ts';
import { reasonOf } from '../lib/base/errors.ts';
import { createLog } from '../lib/base/log.ts';
import { say, show } from './show.ts';
import { DEMO_UPSTREAM, startDemoUpstream } from './upstream.ts';

// `npm run demo`: the whole service on free ports and in a temporary directory, against an upstream of its own. It
// never calls a provider, whatever keys the environment holds. Ctrl-C ends it early and cleans up all the same.

/** The address of the upstream in demo/catalog; the demo's own takes a free port. */
const CATALOG_UPSTREAM = 'http://127.0.0.1:9000';

const stopping = new AbortController();
// npm passes on a Ctrl-C that the terminal has already sent to the whole group: a second signal is ignored here.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => stopping.abort(new Error('stopped by a signal')));
}

const home = await realpath(await mkdtemp(join(tmpdir(), 'relay-demo-')));
const upstream = await startDemoUpstream(DEMO_UPSTREAM);
let server: Server | null = null;
try {
  const { port } = upstream.address() as AddressInfo;
  say(`A fake upstream listens on port ${port}; it fails now and then, on purpose.`);
  const secrets = { key: randomBytes(24).toString('hex'), adminToken: randomBytes(24).toString('hex') };
  const env = {
    RELAY_DATA_DIR: join(home, 'data'),
    RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
    RELAY_CATALOG: await copyCatalog(`http://127.0.0.1:${port}`),
    RELAY_PORT: '0',
    RELAY_CONTROL_PORT: '0',
    RELAY_SHUTDOWN_DEADLINE_S: '2',
    RELAY_ADMIN_TOKEN: secrets.adminToken,
    RELAY_KEY_DEMO: secrets.key,
    DEMO_KEY_1: 'the-demo-upstream',
    DEMO_KEY_2: 'takes-any-key',
  };
  server = await startServer(loadConfig(env), env, createLog('silent'));
  await server.app.ready;
  stopping.signal.throwIfAborted();
  const url = `http://127.0.0.1:${server.port}`;
  say(`Relay Batch, with a Postgres of its own, is ready on ${url}\n`);
  await show({ ...secrets, url, controlUrl: `http://127.0.0.1:${server.controlPort}`, signal: stopping.signal });
} catch (error) {
  process.stderr.write(`The demo failed: ${reasonOf(stopping.signal.aborted ? stopping.signal.reason : error)}\n`);
  process.exitCode = 1;
} finally {
  await server?.stop();
  upstream.closeAllConnections();
  upstream.close();
  await rm(home, { recursive: true, force: true, maxRetries: 5 });
  say('\nEverything is stopped and removed again.');
}

async function copyCatalog(upstreamUrl: string): Promise<string> {
  const from = join(import.meta.dirname, 'catalog');
  const to = join(home, 'catalog');
  await mkdir(to);
  for (const name of await readdir(from)) {
    const text = await readFile(join(from, name), 'utf8');
    await writeFile(join(to, name), text.replaceAll(CATALOG_UPSTREAM, upstreamUrl));
  }
  return to;
}
