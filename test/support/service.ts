import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { vi } from 'vitest';
import { type Server, startServer } from '../../bin/serve.ts';
import { inferenceRoutes } from '../../handlers/inference.ts';
import { loadConfig } from '../../lib/app/config.ts';
import type { App } from '../../lib/app/container.ts';
import { ILLEGAL_TRANSITION } from '../../lib/base/modes.ts';
import { createMatcher } from '../../lib/http/routes.ts';
import { PERIODS, type Periods } from '../../lib/worker/periods.ts';
import { plaintextOf } from './auth-catalog.ts';
import { type Answer, asEvent, type Call, onLambda, overHttp, type Way } from './native-api.ts';
import { createTestDatabase, type TestDatabase } from './postgres.ts';
import { startUpstream, type TestUpstream } from './upstream.ts';

/** The service as it runs in the container, with a real database, a real upstream and a worker. */
export interface Service {
  server: Server;
  app: App;
  database: TestDatabase;
  upstream: TestUpstream;
  payloadDir: string;
  /** One call; `node` is HTTP to the running server, `lambda` the handlers with an API Gateway event. */
  call(way: Way, call: Call): Promise<Answer>;
  /** Submits a batch of items given as JSON text (or values) and returns its id. */
  submit(way: Way, items: readonly (string | Buffer | object)[], options?: SubmitOptions): Promise<string>;
  /** Resolves when the batch's last item is final. */
  finished(id: string): Promise<void>;
  /** Submits, waits for the end, and returns the elements of the results document with its bytes. */
  run(way: Way, items: readonly (string | Buffer | object)[], options?: SubmitOptions): Promise<Ran>;
  /** The usage events of a batch by idx, with their routes. */
  events(id: string): Promise<Record<string, unknown>[]>;
  /** Runs a statement of the test's own. */
  sql(text: string, values?: unknown[]): Promise<Record<string, unknown>[]>;
  /** Everything that was logged so far, at every level. */
  logged(): string;
  close(): Promise<void>;
}

export interface SubmitOptions {
  shape?: 'openai' | 'openai_responses' | 'anthropic';
  as?: string;
  headers?: Record<string, string>;
  /** Further members of the submission, as JSON values. */
  more?: Record<string, unknown>;
}

export interface Ran {
  id: string;
  answer: Answer;
  // biome-ignore lint/suspicious/noExplicitAny: responses are of many forms
  results: { idx: number; state: string; response?: any; error?: string }[];
}

export interface ServiceOptions {
  /** Environment of the service beside what the test needs. */
  env?: Record<string, string>;
  /** YAML documents beside CATALOG. */
  catalog?: string;
  /** One database, or payload directory, for several services. */
  database?: TestDatabase;
  payloadDir?: string;
  upstream?: TestUpstream;
}

/** Heartbeats that find within a second what is due, in place of ten. */
const QUICK: Periods = { ...PERIODS, tickMs: 200, heartbeatBusyMs: 1000, heartbeatIdleMs: 1000 };

const KEYS = ['ann', 'bob'];

/** Model names that `upstream-directives.ts` obeys, as wildcards and aliases of the model `any`. */
const DIRECTIVES = [
  ...['status-*', 'retry-after-*', 'slow-*', 'cut-*', 'html-*', 'error-in-*', 'error-beside-*', 'empty-*', 'null-*'],
  'refusal-in-*',
  ...['array-*', 'string-*', 'latin1-*', 'bom-*', 'half-*', 'big-*', 'encoding-*', 'gzip-*', 'br-*'],
  ...['hang', 'hang-body', 'drip', 'cut', 'cut-chunked', 'reset', 'drop', 'garbage', 'redirect', 'gzip', 'br', 'zstd'],
];

/**
 * Model `any`: every directive, on a host without keys, so that no breaker joins the cases up. `keyed`: the same on
 * a host with the keys `one` and `two`. `lost`: on a host that refuses every dial. `priced`: with a pricing.
 */
export const SERVICE_CATALOG = (url: string) => `${OBJECTS(url)}${KEYS.map(KEY).join('')}`;

const OBJECTS = (url: string) => `
kind: Host
metadata: {name: up}
spec: {baseURL: "${url}", noAuth: true}
---
kind: Host
metadata: {name: keyed}
spec: {baseURL: "${url}"}
---
kind: Host
metadata: {name: lost}
spec: {baseURL: "http://127.0.0.1:1", noAuth: true}
---
kind: HostKey
metadata: {name: one}
spec: {host: keyed, valueFrom: {kind: env, env: TEST_HOST_KEY_ONE}}
---
kind: HostKey
metadata: {name: two}
spec: {host: keyed, valueFrom: {kind: env, env: TEST_HOST_KEY_TWO}}
---
kind: Model
metadata: {name: any}
spec: {provider: test, aliases: [${DIRECTIVES.map((name) => `"${name}"`).join(', ')}]}
---
kind: Binding
metadata: {name: any-openai}
spec: {model: any, host: up}
---
kind: Binding
metadata: {name: any-responses}
spec: {model: any, host: up, adapter: openai_responses}
---
kind: Binding
metadata: {name: any-anthropic}
spec: {model: any, host: up, adapter: anthropic}
---
kind: Model
metadata: {name: keyed}
spec: {provider: test, aliases: ["k-*"]}
---
kind: Binding
metadata: {name: keyed}
spec: {model: keyed, host: keyed}
---
kind: Model
metadata: {name: keyless}
spec: {provider: test}
---
kind: Binding
metadata: {name: keyless}
spec: {model: keyless, host: keyless}
---
kind: Host
metadata: {name: keyless}
spec: {baseURL: "${url}"}
---
kind: Model
metadata: {name: lost}
spec: {provider: test}
---
kind: Binding
metadata: {name: lost}
spec: {model: lost, host: lost}
---
kind: Model
metadata: {name: priced}
spec: {provider: test}
---
kind: Pricing
metadata: {name: test}
spec: {rates: [{meter: tokens.input, unit: per_million, amount: 2.5}, {meter: tokens.output, unit: per_million, amount: 10}]}
---
kind: Binding
metadata: {name: priced}
spec: {model: priced, host: up, upstreamName: priced-upstream, pricing: test}
---
kind: Model
metadata: {name: "off"}
spec: {provider: test, enabled: false}
---
kind: Model
metadata: {name: nowhere}
spec: {provider: test}
---
kind: Model
metadata: {name: foreign}
spec: {provider: other}
---
kind: Binding
metadata: {name: foreign}
spec: {model: foreign, host: up}
---
kind: Model
metadata: {name: chat-only}
spec: {provider: test}
---
kind: Binding
metadata: {name: chat-only}
spec: {model: chat-only, host: up}
---
kind: Policy
metadata: {name: p}
spec: {models: [test], hostKeys: [one, two]}
`;

const KEY = (name: string) => `---
kind: Key
metadata: {name: ${name}}
spec: {policy: p, valueFrom: {kind: env, env: TEST_KEY_${name.toUpperCase()}}}
`;

/** The environment that the catalogue's secrets are read from. */
export const SERVICE_SECRETS: Record<string, string> = {
  TEST_HOST_KEY_ONE: 'sk-host-one',
  TEST_HOST_KEY_TWO: 'sk-host-two',
  ...Object.fromEntries([...KEYS, 'eve'].map((name) => [`TEST_KEY_${name.toUpperCase()}`, plaintextOf(name)])),
};

/** Starts the service with the keys `ann` and `bob` of policy `p`, and waits until it is ready. */
export async function startService(options: ServiceOptions = {}): Promise<Service> {
  const home = await mkdtemp(join(tmpdir(), 'relay-service-'));
  const database = options.database ?? (await createTestDatabase());
  const upstream = options.upstream ?? (await startUpstream());
  const payloadDir = options.payloadDir ?? join(home, 'payloads');
  const path = join(home, 'catalog.yaml');
  await writeFile(path, SERVICE_CATALOG(upstream.url) + (options.catalog ?? ''));
  const env: Record<string, string> = {
    ...database.postgresEnv,
    RELAY_DATA_DIR: join(home, 'data'),
    RELAY_BATCH_PAYLOAD_DIR: payloadDir,
    RELAY_CATALOG: path,
    RELAY_PORT: '0',
    RELAY_CONTROL_PORT: 'off',
    RELAY_SHUTDOWN_DEADLINE_S: '0',
    ...SERVICE_SECRETS,
    ...options.env,
  };
  const lines: string[] = [];
  const log = pino(
    { level: 'trace' },
    new Writable({
      write(chunk, _encoding, done) {
        lines.push(String(chunk));
        done();
      },
    }),
  );
  const server = await startServer(loadConfig(env), env, log, QUICK);
  const { app } = server;
  await app.ready;
  const url = `http://127.0.0.1:${server.port}`;
  const find = createMatcher(onLambda(inferenceRoutes(app), app));

  const service: Service = {
    server,
    app,
    database,
    upstream,
    payloadDir,
    sql: database.sql,
    call: (way, call) => (way === 'node' ? overHttp(url, call) : asEvent(find, call)),
    async submit(way, items, { shape = 'openai', as, headers, more = {} } = {}) {
      const members = Object.entries(more).map(([name, value]) => `,${JSON.stringify(name)}:${JSON.stringify(value)}`);
      const pieces = items.flatMap((item, i) => [Buffer.from(i === 0 ? '' : ','), bytesOf(item)]);
      const body = Buffer.concat([
        Buffer.from(`{"shape":"${shape}","requests":[`),
        ...pieces,
        Buffer.from(`]${members.join('')}}`),
      ]);
      const answer = await service.call(way, {
        method: 'POST',
        path: '/v1/batches',
        body,
        ...(as ? { as } : {}),
        ...(headers ? { headers } : {}),
      });
      if (answer.status !== 202) throw new Error(`submit was answered ${answer.status}: ${answer.text}`);
      return answer.json.id;
    },
    finished: (id) =>
      vi.waitUntil(
        async () =>
          (await database.sql('select 1 from batches where id = $1::uuid and completed_at is not null', [id])).length >
          0,
        { interval: 10, timeout: 25_000 },
      ) as Promise<unknown> as Promise<void>,
    async run(way, items, options) {
      const id = await service.submit(way, items, options);
      await service.finished(id);
      const as = options?.as;
      const answer = await service.call(way, { path: `/v1/batches/${id}/results`, ...(as ? { as } : {}) });
      return { id, answer, results: answer.json.results };
    },
    events: (id) =>
      database.sql(
        `select e.*, r.requested_model, r.model, r.host, r.host_key, r.adapter, e.cost_nanos::text as cost
        from usage_events e left join usage_routes r on r.id = e.route
        where e.batch_id = $1::uuid order by e.batch_idx`,
        [id],
      ),
    logged: () => lines.join(''),
    async close() {
      await server.stop();
      const illegal = lines.filter((line) => line.includes(ILLEGAL_TRANSITION));
      if (illegal.length > 0) throw new Error(illegal.join(''));
      if (!options.upstream) await upstream.close();
      if (!options.database) await database.close();
      await rm(home, { recursive: true, force: true });
    },
  };
  return service;
}

function bytesOf(item: string | Buffer | object): Buffer {
  if (Buffer.isBuffer(item)) return item;
  return Buffer.from(typeof item === 'string' ? item : JSON.stringify(item));
}
