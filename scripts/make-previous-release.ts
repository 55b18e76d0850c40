import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cp, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createTcpServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { createLog } from '../lib/base/log.ts';
import { startEmbedded } from '../lib/postgres/embedded.ts';

// Makes the fixture of test/integration/app/previous-release.test.ts: runs a checkout of the previous release on a
// Postgres of its own, kills it in the middle of its work, and writes down what it left.
//
//   git worktree add --detach ../previous <tag or commit> && (cd ../previous && npm install)
//   npx node scripts/make-previous-release.ts ../previous
//
// The result is in test/support/previous-release: migrations/ (as the release has them), data.jsonl (every row of every
// table), payloads/ (every object), manifest.json (what the test has to know). All keys in it are made up.

const [checkout] = process.argv.slice(2);
if (checkout === undefined) throw new Error('usage: make-previous-release.ts <checkout of the previous release>');
const TARGET = join(import.meta.dirname, '../test/support/previous-release');

/** Slots of the replica. So many items hang in the end, and everything that is submitted later waits. */
const SLOTS = 6;
/** Replaces the upstream's address in the dump. */
const UPSTREAM = 'http://upstream.invalid';

const secrets = {
  masterKey: Buffer.alloc(32, 'previous release').toString('base64'),
  adminToken: 'previous-release-admin',
  instance: 'previous-release',
  env: { PREVIOUS_KEY_ANN: 'previous-release-key-of-ann', PREVIOUS_HOST_KEY: 'previous-release-host-key-from-env' },
  storedHostKey: 'previous-release-host-key-stored',
};

const catalog = (url: string) => `
kind: Host
metadata: {name: up}
spec: {baseURL: "${url}"}
---
kind: HostKey
metadata: {name: stored}
spec: {host: up, valueFrom: {kind: stored}, value: ${secrets.storedHostKey}}
---
kind: Host
metadata: {name: shaky}
spec: {baseURL: "${url}"}
---
kind: HostKey
metadata: {name: shaky}
spec: {host: shaky, valueFrom: {kind: env, env: PREVIOUS_HOST_KEY}}
---
kind: Model
metadata: {name: small}
spec: {provider: test, aliases: ["small-*"]}
---
kind: Pricing
metadata: {name: small}
spec: {rates: [{meter: tokens.input, unit: per_million, amount: 1}, {meter: tokens.output, unit: per_million, amount: 5}]}
---
kind: Binding
metadata: {name: small-openai}
spec: {model: small, host: up, pricing: small}
---
kind: Binding
metadata: {name: small-anthropic}
spec: {model: small, host: up, adapter: anthropic, pricing: small}
---
kind: Model
metadata: {name: shaky}
spec: {provider: test}
---
kind: Binding
metadata: {name: shaky}
spec: {model: shaky, host: shaky}
---
kind: RateLimit
metadata: {name: monthly}
spec:
  rules:
    - {meter: requests, amount: 1000, window: 2592000, strategy: session-window}
    - {meter: tokens, amount: 1000000, window: 2592000, strategy: sliding-window}
    - {meter: concurrency, amount: 100}
---
kind: Policy
metadata: {name: p}
spec: {models: [test], hostKeys: [stored, shaky], rateLimit: monthly}
---
kind: Key
metadata: {name: ann}
spec: {policy: p, valueFrom: {kind: env, env: PREVIOUS_KEY_ANN}}
---
kind: Team
metadata: {name: t}
---
kind: Project
metadata: {name: x}
spec: {team: t, policy: p}
---
kind: User
metadata: {name: uma}
spec: {team: t}
`;

const home = await mkdtemp(join(tmpdir(), 'relay-previous-'));
const upstream = createServer((request, response) => void answer(request, response));
let received = 0;
/** Calls without an answer so far. */
let hanging = 0;

/** Answers with an echo; "later" hangs until the release is killed, the model `shaky` is always refused with 503. */
async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const { model, messages } = JSON.parse(Buffer.concat(chunks).toString()) as {
    model: string;
    messages: { content: string }[];
  };
  const { content } = messages[0]!;
  received++;
  if (content.startsWith('later')) {
    hanging++;
    response.on('close', () => hanging--);
    return;
  }
  response.setHeader('content-type', 'application/json');
  if (model === 'shaky') {
    response.statusCode = 503;
    response.end('{"error":{"message":"down for now"}}');
    return;
  }
  const text = `before: ${content}`;
  response.end(
    JSON.stringify(
      request.url === '/v1/messages'
        ? {
            ...{ id: 'msg_1', type: 'message', role: 'assistant', model, content: [{ type: 'text', text }] },
            ...{ stop_reason: 'end_turn', usage: { input_tokens: 10, output_tokens: 5 } },
          }
        : {
            ...{ id: 'chatcmpl-1', object: 'chat.completion', model },
            choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: text } }],
            usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 },
          },
    ),
  );
}

/** Calls `done` until it is true. */
async function until(what: string, done: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 60_000;
  while (!(await done())) {
    if (performance.now() > deadline) throw new Error(`timed out: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function freePort(): Promise<number> {
  const server = createTcpServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

/** Starts the previous release and resolves when it is ready. */
async function startRelease(dsn: string, url: string) {
  const [port, controlPort] = [await freePort(), await freePort()];
  const path = join(home, 'catalog.yaml');
  await writeFile(path, catalog(url));
  const child = spawn(process.execPath, [join(checkout!, 'bin/server.ts')], {
    cwd: home,
    stdio: ['ignore', 'ignore', 'inherit'],
    env: {
      PATH: process.env.PATH,
      RELAY_PG_DSN: dsn,
      RELAY_DATA_DIR: join(home, 'data'),
      RELAY_BATCH_PAYLOAD_DIR: join(home, 'payloads'),
      RELAY_CATALOG: path,
      RELAY_PORT: String(port),
      RELAY_CONTROL_PORT: String(controlPort),
      RELAY_MASTER_KEY: secrets.masterKey,
      RELAY_ADMIN_TOKEN: secrets.adminToken,
      RELAY_INSTANCE_ID: secrets.instance,
      RELAY_BATCH_CONCURRENCY: String(SLOTS),
      ...secrets.env,
    },
  });
  const call = async (base: string, path: string, key: string, init: RequestInit = {}) => {
    const response = await fetch(`${base}${path}`, {
      ...init,
      headers: { authorization: `Bearer ${key}`, ...init.headers },
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${path} was answered ${response.status}: ${text}`);
    return text;
  };
  const base = `http://127.0.0.1:${port}`;
  await until('a ready server', async () => (await fetch(`${base}/healthz`).catch(() => null))?.status === 200);
  return {
    base,
    get: (path: string, key: string) => call(base, path, key),
    /** A string is sent as it is, anything else as JSON. */
    async post(path: string, key: string, body: unknown, headers: Record<string, string> = {}) {
      const sent = typeof body === 'string' || body instanceof FormData ? body : JSON.stringify(body);
      return JSON.parse(await call(base, path, key, { method: 'POST', body: sent, headers }));
    },
    control: async (path: string, body: unknown) =>
      JSON.parse(
        await call(`http://127.0.0.1:${controlPort}`, path, secrets.adminToken, {
          method: 'POST',
          body: JSON.stringify(body),
        }),
      ),
    async kill() {
      child.kill('SIGKILL');
      await once(child, 'exit');
    },
  };
}

type Release = Awaited<ReturnType<typeof startRelease>>;

const chat = (content: string, model = 'small') => ({ model, messages: [{ role: 'user', content }] });
const native = (contents: string[], model?: string) => ({
  shape: 'openai',
  requests: contents.map((content) => chat(content, model)),
});

async function putFile({ post }: Release, name: string, contents: string[]): Promise<string> {
  const lines = contents.map((content, i) =>
    JSON.stringify({ custom_id: `${name}-${i}`, method: 'POST', url: '/v1/chat/completions', body: chat(content) }),
  );
  const form = new FormData();
  form.set('purpose', 'batch');
  form.set('file', new Blob([`${lines.join('\n')}\n`]), `${name}.jsonl`);
  return (await post('/v1/files', secrets.env.PREVIOUS_KEY_ANN, form)).id;
}

const openai = { endpoint: '/v1/chat/completions', completion_window: '24h' };

/** Puts the release to work and kills it there. Returns what the manifest says. */
async function work(release: Release, db: pg.Client) {
  const ann = secrets.env.PREVIOUS_KEY_ANN;
  const { get, post, control } = release;
  const count = async (text: string, values: unknown[] = []) =>
    Number((await db.query(`select count(*) as n from ${text}`, values)).rows[0].n);
  const { token } = await control('/api/tokens', { user: 'uma', project: 'x', ttl: 2_592_000 });

  // Done before: compacted, with usage; one item was discarded, one batch cancelled, one file written.
  const done = (await post('/v1/batches', ann, native(['done 0', 'done 1', 'done 2']))).id as string;
  const discarded = (await post('/v1/batches', ann, native(['nobody'], 'unknown'))).id as string;
  const doneFile = await putFile(release, 'written', ['written 0']);
  const written = (await post('/v1/batches', ann, { ...openai, input_file_id: doneFile })).id as string;
  await until('compacted batches', async () => (await count('batches where results_id is not null')) === 3);
  const outputFile = JSON.parse(await get(`/v1/batches/${written}`, ann)).output_file_id as string;
  const cancelled = (await post('/v1/batches', ann, native(['later cancelled']))).id as string;
  await until('a call to cancel', async () => received === 5);
  await post(`/v1/batches/${cancelled}/cancel`, ann, '');
  await until('compacted batches', async () => (await count('batches where results_id is not null')) === 4);

  // Waits for a breaker.
  const shaky = { ...native(['shaky 0', 'shaky 1'], 'shaky'), on_limit: 'wait', max_attempts: 5 };
  const waiting = (await post('/v1/batches', ann, shaky)).id as string;
  await until('an open breaker', async () => (await count('breakers')) > 0);

  /** Resolves when so many items are answered and recorded, and so many calls hang. */
  const halfDone = (answered: number, calls: number) =>
    until('half done batches', async () => {
      const recorded = await count(`batch_items i join batches b on b.id = i.batch_id
        where b.completed_at is null and i.state = 'completed'`);
      return recorded === answered && hanging === calls;
    });

  // Half done: what is answered is recorded, what hangs takes all slots.
  const half = (
    await post(
      '/v1/batches',
      token,
      native(['half 0', 'later half 1', 'half 2', 'later half 3', 'later half 4', 'half 5']),
    )
  ).id as string;
  const runningFile = await putFile(release, 'running', [
    'running 0',
    'later running 1',
    'later running 2',
    'running 3',
  ]);
  const running = (await post('/v1/batches', ann, { ...openai, input_file_id: runningFile })).id as string;
  await halfDone(5, 5);
  const messages = (
    await post(
      '/v1/messages/batches',
      ann,
      {
        requests: ['messages 0', 'messages 1', 'later messages 2'].map((content, i) => ({
          custom_id: `messages-${i}`,
          params: { ...chat(content), max_tokens: 64 },
        })),
      },
      { 'anthropic-version': '2023-06-01' },
    )
  ).id as string;
  await halfDone(7, SLOTS);

  // Queued: nothing of it has run.
  const queuedBody = JSON.stringify(native(Array.from({ length: 20 }, (_, i) => `queued ${i}`)));
  const queued = (await post('/v1/batches', ann, queuedBody, { 'Idempotency-Key': 'previous-release' })).id as string;
  const uploadBody = JSON.stringify(native(['uploaded 0', 'uploaded 1']));
  const upload = await post('/v1/uploads', ann, { bytes: uploadBody.length });
  const put = await fetch(upload.upload_url, { method: 'PUT', body: uploadBody });
  if (!put.ok) throw new Error(`the upload was answered ${put.status}`);

  // In validation: it has its lease, and its items are about to be written when the release dies.
  const validatingFile = await putFile(release, 'validating', ['validating 0', 'validating 1']);
  await db.query('begin');
  await db.query('lock table batch_cursors in share mode');
  const validating = (await post('/v1/batches', ann, { ...openai, input_file_id: validatingFile })).id as string;
  await until(
    'a validation under way',
    async () => (await count(`openai_batches where lease_until is not null and in_progress_at is null`)) === 1,
  );
  await until('a validation that waits', async () => (await count(`pg_locks where not granted`)) > 0);
  await release.kill();
  await db.query(`select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()`);
  await db.query('commit');
  await until(
    'closed connections',
    async () => (await count(`pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)) === 0,
  );

  return {
    ...{ secrets, upstream: UPSTREAM, received },
    kid: JSON.parse(Buffer.from(token.split('.')[0], 'base64url').toString()).kid,
    batches: { done, discarded, written, cancelled, waiting, half, running, messages, queued, validating },
    files: { written: doneFile, output: outputFile, running: runningFile, validating: validatingFile },
    upload: { id: upload.upload_id, body: uploadBody },
    queued: { body: queuedBody, idempotencyKey: 'previous-release' },
  };
}

/** Every row of every table, one a line, tables without foreign keys first; and the partitions that migrations do not make. */
async function dump(db: pg.Client, upstreamUrl: string): Promise<{ data: string; partitions: unknown[] }> {
  const { rows: tables } = await db.query<{ name: string }>(
    `select relname as name from pg_class c where relnamespace = 'public'::regnamespace and relkind in ('r', 'p')
      and not relispartition
      order by (select count(*) from pg_constraint where conrelid = c.oid and contype = 'f'), relname`,
  );
  const lines: string[] = [];
  for (const { name } of tables) {
    const { rows } = await db.query<{ row: string }>(`select to_jsonb(t)::text as row from ${name} t order by 1`);
    for (const { row } of rows) lines.push(`{"table":"${name}","row":${row.replaceAll(upstreamUrl, UPSTREAM)}}`);
  }
  const { rows: partitions } = await db.query(
    `select c.relname as name, p.relname as parent, pg_get_expr(c.relpartbound, c.oid) as bound
      from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
      where c.relkind = 'r' and pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT' order by c.relname`,
  );
  return { data: `${lines.join('\n')}\n`, partitions };
}

async function listen(server: Server): Promise<string> {
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const url = await listen(upstream);
const embedded = await startEmbedded({ dataDir: join(home, 'postgres-of-its-own'), log: createLog('warn') });
const db = new pg.Client({ connectionString: embedded.dsn });
try {
  await db.connect();
  const release = await startRelease(embedded.dsn, url);
  const manifest = await work(release, db).catch(async (error) => {
    await release.kill().catch(() => {});
    throw error;
  });
  const { data, partitions } = await dump(db, url);
  const { rows } = await db.query(
    `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as now`,
  );

  for (const folder of ['migrations', 'payloads']) await rm(join(TARGET, folder), { recursive: true, force: true });
  await mkdir(TARGET, { recursive: true });
  await cp(join(checkout, 'migrations'), join(TARGET, 'migrations'), { recursive: true });
  await cp(join(home, 'payloads'), join(TARGET, 'payloads'), { recursive: true });
  await writeFile(join(TARGET, 'data.jsonl'), data);
  await writeFile(
    join(TARGET, 'manifest.json'),
    `${JSON.stringify({ dumpedAt: rows[0].now, ...manifest, partitions }, null, 2)}\n`,
  );
} finally {
  await db.end();
  await embedded.stop();
  upstream.closeAllConnections();
  upstream.close();
  await rm(home, { recursive: true, force: true });
}
