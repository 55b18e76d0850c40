import { randomUUID } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Context } from 'aws-lambda';
import { bindEndpoints } from '../../handlers/endpoint.ts';
import { healthEndpoint } from '../../handlers/health.ts';
import { type NativeApp as BatchesApp, NATIVE_ENDPOINTS } from '../../handlers/native.ts';
import { receiveUploadEndpoint, UPLOAD_ENDPOINTS, type UploadsApp } from '../../handlers/uploads.ts';
import { authenticate } from '../../lib/auth/authenticate.ts';
import { createBodyBudget } from '../../lib/base/body-budget.ts';
import { systemClock } from '../../lib/base/clock.ts';
import { ApiError } from '../../lib/base/errors.ts';
import { createKeyedTurns } from '../../lib/base/keyed-turns.ts';
import { createLog } from '../../lib/base/log.ts';
import { createReaderBudget } from '../../lib/batch/results/reader-budget.ts';
import type { ApiEvent } from '../../lib/http/event.ts';
import { forLambda, type LambdaDeps } from '../../lib/http/lambda.ts';
import { type HttpServer, type SeenRequest, type ServeOptions, serve } from '../../lib/http/node.ts';
import { type BoundRoute, createMatcher } from '../../lib/http/routes.ts';
import type { Catalog } from '../../lib/model/catalog.ts';
import { createFileStore } from '../../lib/payloads/file-store.ts';
import type { PayloadStore } from '../../lib/payloads/payload-store.ts';
import type { Wake } from '../../lib/queue/queue.ts';
import { callers, plaintextOf } from './auth-catalog.ts';
import { createTestDatabase, type TestDatabase } from './postgres.ts';

/** All that the native API needs of the application. */
export type NativeApp = BatchesApp & Omit<UploadsApp, 'payloads'>;

/** The two ways a request can come: over HTTP through the Node adapter, or as an API Gateway event. */
export const WAYS = ['node', 'lambda'] as const;
export type Way = (typeof WAYS)[number];

export interface Call {
  method?: string;
  path: string;
  /** Name of the key presented; null presents none. */
  as?: string | null;
  headers?: Record<string, string>;
  body?: string | Buffer;
}

export interface Answer {
  status: number;
  headers: Headers;
  bytes: Buffer;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of many forms
  json: any;
}

/** Routes that can be called both ways. */
export interface Served {
  server: HttpServer;
  /** The address that the server listens on. */
  url: string;
  seen: SeenRequest[];
  call(way: Way, call: Call): Promise<Answer>;
}

export interface NativeApi extends Served {
  database: TestDatabase;
  payloads: PayloadStore;
  app: NativeApp;
  wakes: Wake[];
  /** Serves further routes (of another surface, of the control port) on the same database and store, until the close. */
  serve(routes: readonly BoundRoute[], options?: Partial<ServeChange>): Promise<Served>;
  /** Runs a statement of the test's own. */
  sql(text: string, values?: unknown[]): Promise<Record<string, unknown>[]>;
  close(): Promise<void>;
}

/** The settings of a surface that differ from the native API's. */
interface ServeChange extends Pick<ServeOptions, 'guard'> {
  maxBodyBytes: number;
  /** In place of the application's. */
  payloads: PayloadStore;
  /** Routes that the Node adapter has alone. */
  nodeOnly: readonly BoundRoute[];
}

/**
 * The native API on a real database and a real file store. Its keys: `ann` and `bob` of the policy `p`, `off` of a
 * disabled policy, `none` without a policy, and `gone`, which is revoked. There are no workers: tests make items final
 * by SQL.
 */
export async function createNativeApi(change: (app: NativeApp) => Partial<NativeApp> = () => ({})): Promise<NativeApi> {
  const database = await createTestDatabase();
  const directory = await mkdtemp(join(tmpdir(), 'relay-payloads-'));
  const payloads = createFileStore(directory);
  const catalog: Catalog = callers({
    policies: [{ name: 'p' }, { name: 'disabled', enabled: false }],
    keys: [
      { name: 'ann', policy: 'p' },
      { name: 'bob', policy: 'p' },
      { name: 'off', policy: 'disabled' },
      { name: 'none' },
      { name: 'gone', policy: 'p', revokedAt: 1 },
    ],
  });
  const wakes: Wake[] = [];
  const base: NativeApp = {
    db: database.db,
    payloads,
    queue: { send: async (wake) => void wakes.push(wake) },
    clock: systemClock,
    log: createLog('silent'),
    catalog: () => catalog,
    maxItems: 50_000,
    maxRequestBytes: 1024 * 1024,
    maxPendingItemsPerOwner: 0,
    bodies: createBodyBudget(64 * 1024 * 1024),
    uploadTurns: createKeyedTurns(),
    readers: createReaderBudget({ capBytes: 64 * 1024 * 1024, maxStreams: 100 }),
    publicUrl: null,
    notReady: () => null,
    authenticate: (headers) =>
      authenticate(headers, catalog, {
        nowMs: Date.now(),
        tokens: { verify: () => Promise.reject(new ApiError('invalid_token')) },
      }),
    batchUsage: async () => ({ tokens: {}, cost_nanos: null, unpriced: 0 }),
    instance: 'test',
    abortHere: () => {},
  };
  const app: NativeApp = { ...base, ...change(base) };
  const store = { ...payloads, ...app.payloads };
  const servers: HttpServer[] = [];

  const serveRoutes: NativeApi['serve'] = async (routes, options = {}) => {
    const { maxBodyBytes = app.maxRequestBytes, nodeOnly = [], guard } = options;
    const seen: SeenRequest[] = [];
    const onRequest = (request: SeenRequest) => void seen.push(request);
    const listen = {
      host: '127.0.0.1',
      port: 0,
      maxBodyBytes,
      bodies: app.bodies,
      log: app.log,
      onRequest,
      ...(guard && { guard }),
    };
    const server = await serve({ ...listen, routes: [...routes, ...nodeOnly] });
    servers.push(server);
    const url = `http://127.0.0.1:${server.port}`;
    const find = createMatcher(onLambda(routes, { ...app, payloads: options.payloads ?? store }));
    const call: Served['call'] = (way, one) => (way === 'node' ? overHttp(url, one) : asEvent(find, one));
    return { server, url, seen, call };
  };
  const whole = { ...app, payloads: store };
  const uploads = UPLOAD_ENDPOINTS.filter((one) => one !== receiveUploadEndpoint);
  const native = await serveRoutes(bindEndpoints([healthEndpoint, ...NATIVE_ENDPOINTS, ...uploads], whole), {
    nodeOnly: bindEndpoints([receiveUploadEndpoint], whole),
  });

  return {
    ...native,
    database,
    payloads,
    app,
    wakes,
    serve: serveRoutes,
    sql: database.sql,
    async close() {
      for (const server of servers) await server.close(0);
      await database.close();
      await rm(directory, { recursive: true, force: true });
    },
  };
}

function headersOf(call: Call): Record<string, string> {
  const name = call.as === undefined ? 'ann' : call.as;
  return { ...(name === null ? {} : { authorization: `Bearer ${plaintextOf(name)}` }), ...call.headers };
}

/** One call over HTTP. */
export async function overHttp(url: string, call: Call): Promise<Answer> {
  const response = await fetch(url + call.path, {
    method: call.method ?? 'GET',
    headers: headersOf(call),
    ...(call.body === undefined ? {} : { body: call.body as NonNullable<RequestInit['body']> }),
  });
  return answerOf(response.status, response.headers, Buffer.from(await response.arrayBuffer()));
}

/** The same routes as Lambda functions serve them. */
export function onLambda(routes: readonly BoundRoute[], deps: LambdaDeps): BoundRoute[] {
  return routes.map((route) => ({ ...route, run: forLambda(route.run, deps) }));
}

/** One call as an API Gateway event. */
export async function asEvent(find: ReturnType<typeof createMatcher>, call: Call): Promise<Answer> {
  const [path = '', query = ''] = call.path.split('?');
  const method = call.method ?? 'GET';
  const match = find(method, path);
  if (match.kind !== 'found') throw new Error(`API Gateway has no route for ${method} ${path}`);
  const routeKey = `${method} ${match.route.pattern}`;
  const event: ApiEvent = {
    version: '2.0',
    routeKey,
    rawPath: path,
    rawQueryString: query,
    headers: headersOf(call),
    pathParameters: match.parameters,
    isBase64Encoded: call.body !== undefined,
    ...(call.body === undefined ? {} : { body: Buffer.from(call.body).toString('base64') }),
    requestContext: {
      accountId: '1',
      apiId: 'a',
      domainName: 'd',
      domainPrefix: 'd',
      http: { method, path, protocol: 'HTTP/1.1', sourceIp: '127.0.0.1', userAgent: 'test' },
      requestId: randomUUID(),
      routeKey,
      stage: '$default',
      time: '',
      timeEpoch: 0,
    },
  };
  // As Lambda does with a result: only values that survive JSON come out.
  const result = JSON.parse(JSON.stringify(await match.route.run(event, {} as Context)));
  const bytes = Buffer.from(result.body ?? '', result.isBase64Encoded ? 'base64' : 'utf8');
  return answerOf(result.statusCode, new Headers(result.headers), bytes);
}

function answerOf(status: number, headers: Headers, bytes: Buffer): Answer {
  const text = bytes.toString();
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  return { status, headers, bytes, text, json };
}
