import { randomBytes } from 'node:crypto';
import { controlGuard } from '../../../handlers/admin.ts';
import { type ControlApp, controlRoutes } from '../../../handlers/control.ts';
import { generateKey } from '../../../lib/auth/keys.ts';
import { createLog } from '../../../lib/base/log.ts';
import { type CatalogCache, createCatalogCache } from '../../../lib/catalog/catalog-cache.ts';
import { loadCatalog } from '../../../lib/catalog/load.ts';
import { createSecretBox } from '../../../lib/catalog/secrets/secret-box.ts';
import { keyHealth, resetKey } from '../../../lib/keypool/health.ts';
import { PERIODS } from '../../../lib/worker/periods.ts';
import { createNativeApi } from '../native-api.ts';
import type { TestDatabase } from '../postgres.ts';

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
  // biome-ignore lint/suspicious/noExplicitAny: what a test expects of it is what it asserts
  json: any;
}

/** The control port over HTTP, on a database of its own. */
export interface ControlServer {
  database: TestDatabase;
  catalogCache: CatalogCache;
  env: Record<string, string | undefined>;
  origin: string;
  /** Calls `/api` with the admin bearer; a string or bytes are sent as they are, anything else as JSON. */
  call(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<Answer>;
  close(): Promise<void>;
}

const ADMIN_TOKEN = 'admin-token-of-this-test';

/** Starts a control port. `overrides` replaces parts of the application. */
export async function startControl(overrides: Partial<ControlApp> = {}): Promise<ControlServer> {
  const native = await createNativeApi();
  const { database } = native;
  const { db } = database;
  const log = createLog('silent');
  const env: Record<string, string | undefined> = {};
  const { secretBox = createSecretBox(randomBytes(32)) } = overrides;
  const catalogCache = createCatalogCache({ load: () => loadCatalog(db, env, secretBox, log), log });
  await catalogCache.refresh();
  const app: ControlApp = {
    log,
    notReady: () => null,
    adminToken: ADMIN_TOKEN,
    db,
    env,
    secretBox,
    catalogCache,
    random: randomBytes,
    generateKey: () => generateKey(randomBytes),
    hostKeyHealth: (key) => keyHealth(db, key),
    resetHostKey: (key) => resetKey(db, key),
    workers: { leaseSeconds: PERIODS.leaseSeconds, onLambda: false },
    usage: {
      events: async (query) => ({ events: [], query: query.toString() }),
      summary: async () => ({ rows: [] }),
      timeseries: async () => ({ rows: [] }),
    },
    metrics: async () => ({ contentType: 'text/plain', body: '# metrics\n' }),
    ...overrides,
  };
  const { url: origin } = await native.serve(controlRoutes(app), { guard: controlGuard(app.adminToken) });
  return {
    database,
    catalogCache,
    env,
    origin,
    async call(method, path, body, headers = { authorization: `Bearer ${ADMIN_TOKEN}` }) {
      const raw = typeof body === 'string' || body instanceof Uint8Array || body === undefined;
      const payload = raw ? (body as string | Uint8Array<ArrayBuffer> | undefined) : JSON.stringify(body);
      const response = await fetch(`${origin}/api${path}`, { method, headers, body: payload ?? null });
      const text = await response.text();
      const isJson = response.headers.get('content-type')?.startsWith('application/json') ?? false;
      return { status: response.status, headers: response.headers, text, json: isJson ? JSON.parse(text) : null };
    },
    close: native.close,
  };
}
