import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { KINDS, PLURALS } from '../../../lib/catalog/documents/kinds.ts';
import { type Answer, type ControlServer, startControl } from '../../support/catalog/control-server.ts';

let control: ControlServer;
const ids: string[] = [];
beforeAll(async () => {
  control = await startControl();
  const seed: [string, string, object][] = [
    ['hosts', 'h', { baseURL: 'http://127.0.0.1:9' }],
    ['models', 'm', { provider: 'p', aliases: ['a', 'b-*'] }],
    ['policies', 'p', {}],
    ['projects', 'j', {}],
    ['users', 'u', {}],
    ['keys', 'k', {}],
    ['host-keys', 'hk', { host: 'h', valueFrom: { kind: 'stored' }, value: 'v' }],
  ];
  for (const [plural, name, spec] of seed) {
    const { json } = await control.call('POST', `/${plural}`, { metadata: { name }, spec });
    ids.push((json.key ?? json).metadata.id);
  }
});
afterAll(() => control?.close());

const LEGAL = new Set([200, 201, 204, 400, 401, 404, 405, 409, 415]);
const CODES = new Set(['invalid_json', 'invalid_value', 'missing_required_parameter', 'body_too_large']);

function check(answer: Answer, what: string): void {
  expect(LEGAL, `${what} -> ${answer.status} ${answer.text}`).toContain(answer.status);
  if (answer.status < 400) return;
  expect(Object.keys(answer.json.error), what).toEqual(['type', 'message', 'code', 'param']);
  if (answer.status !== 400) return;
  expect(CODES, what).toContain(answer.json.error.code);
  for (const fault of answer.json.faults ?? []) {
    expect(fault.field, what).toMatch(/^(kind|metadata|spec|\S)/);
    expect(fault.message, what).not.toBe('');
  }
  const whole = answer.json.error.code === 'invalid_json' || /must be a JSON object/.test(answer.json.error.message);
  if (!whole) expect(answer.json.error.param, `${what} -> ${answer.text}`).toBeTypeOf('string');
}

const scalar = fc.oneof(
  fc.jsonValue({ maxDepth: 1 }),
  fc.constantFrom<unknown>(
    'h',
    'm',
    'p',
    'hk',
    'openai',
    'http://127.0.0.1:9',
    '\u0000',
    '\ud800',
    'a\r\nb',
    '*',
    2 ** 70,
    -1,
    1.5,
  ),
);
const field = fc.oneof(
  fc.constantFrom(
    'baseURL',
    'path',
    'host',
    'valueFrom',
    'value',
    'provider',
    'aliases',
    'snapshots',
    'deprecation',
    'model',
  ),
  fc.constantFrom(
    'adapter',
    'priority',
    'models',
    'hostKeys',
    'rateLimit',
    'rateLimits',
    'project',
    'rules',
    'rates',
    'currency',
  ),
  fc.constantFrom(
    'team',
    'policy',
    'email',
    'principal',
    'expiresAt',
    'revoked',
    'enabled',
    'noAuth',
    '__proto__',
    'constructor',
  ),
  fc.string({ unit: 'binary', maxLength: 8 }),
);
const nested = fc.oneof(
  scalar,
  fc.array(scalar, { maxLength: 3 }),
  fc.dictionary(fc.oneof(field, fc.constantFrom('kind', 'name', 'env', 'meter', 'amount', 'window')), scalar, {
    maxKeys: 3,
  }),
  fc.array(fc.dictionary(fc.constantFrom('meter', 'amount', 'window', 'strategy', 'unit', 'name', 'models'), scalar), {
    maxLength: 2,
  }),
);
const body = fc.oneof(
  fc.record({
    metadata: fc.oneof(
      fc.record({ name: fc.oneof(fc.stringMatching(/^[a-z]{1,3}$/), scalar) }),
      fc.dictionary(fc.constantFrom('name', 'id', 'labels', 'displayName', '__proto__'), nested),
      scalar,
    ),
    spec: fc.oneof(fc.dictionary(field, nested, { maxKeys: 5 }), scalar),
  }),
  fc.dictionary(
    fc.constantFrom('user', 'project', 'ttl', 'graceSeconds', 'kind', 'metadata', 'spec', 'status'),
    nested,
  ),
  scalar,
);
const plural = fc.constantFrom(...KINDS.map((kind) => PLURALS[kind]), 'tokens', 'catalog', 'nope');
const segment = fc.oneof(
  fc.constantFrom('h', 'm', 'k', 'hk', 'by-id', '..', '%00', '%ff', '%2F', 'constructor'),
  fc.constantFrom(0, 1, 2, 3, 4, 5, 6).map((i) => ids[i] ?? 'none'),
  fc.string({ unit: 'binary', minLength: 1, maxLength: 10 }).map((text) => encodeURIComponent(text.toWellFormed())),
);
const path = fc.oneof(
  plural.map((p) => `/${p}`),
  fc.tuple(plural, segment).map(([p, s]) => `/${p}/${s}`),
  fc.tuple(plural, segment).map(([p, s]) => `/${p}/by-id/${s}`),
  fc
    .tuple(plural, segment, fc.constantFrom('rotate', 'revoke', 'revoke-tokens', 'health'))
    .map(([p, s, verb]) => `/${p}/by-id/${s}/${verb}`),
  fc.tuple(segment, fc.constantFrom('health', 'reset')).map(([s, verb]) => `/host-keys/${s}/${verb}`),
);
const TIMEOUT = 120_000;

test(
  'no body makes a 500, and every fault names a field',
  async () => {
    const request = fc.tuple(fc.constantFrom('POST', 'PUT'), path, body);
    await fc.assert(
      fc.asyncProperty(request, async ([method, where, what]) => {
        check(await control.call(method, where, JSON.stringify(what)), `${method} ${where} ${JSON.stringify(what)}`);
      }),
      { numRuns: 600 },
    );
  },
  TIMEOUT,
);

const GOOD: Record<string, object> = {
  hosts: { baseURL: 'http://127.0.0.1:9', path: '/x', noAuth: true, enabled: true },
  'host-keys': { host: 'h', valueFrom: { kind: 'stored' }, value: 'v', policy: 'p' },
  models: { provider: 'p', snapshots: [{ name: 's1', upstreamName: 'u' }], deprecation: { status: 'active' } },
  bindings: { model: 'm', host: 'h', adapter: 'openai', upstreamName: 'u', priority: 1 },
  policies: { models: ['p/m', '@h'], hostKeys: ['hk'], keySelection: 'round-robin', project: 'j' },
  'rate-limits': { rules: [{ meter: 'tokens', amount: 1, window: 60, strategy: 'fixed-window' }] },
  pricings: { currency: 'USD', rates: [{ meter: 'tokens.input', unit: 'per_million', amount: 1, aboveTokens: 0 }] },
  teams: {},
  projects: { policy: 'p' },
  users: { email: 'a@b', enabled: true },
  'service-accounts': { project: 'j', policy: 'p' },
  keys: { policy: 'p', principal: { kind: 'user', name: 'u' }, expiresAt: '2030-01-01T00:00:00Z' },
};

/** Replaces one value of a document, at any depth; `at` picks which. */
function mutate(value: unknown, at: number, by: unknown): unknown {
  const places: [object, string][] = [];
  const copy = structuredClone(value);
  const walk = (node: unknown): void => {
    if (typeof node !== 'object' || node === null) return;
    for (const key of Object.keys(node)) {
      places.push([node, key]);
      walk((node as Record<string, unknown>)[key]);
    }
  };
  walk(copy);
  const [node, key] = places[at % places.length]!;
  (node as Record<string, unknown>)[key] = by;
  return copy;
}

test(
  'a good document with one value replaced is taken, or refused by the name of a field',
  async () => {
    const statuses = new Set<number>();
    let n = 0;
    const change = fc.tuple(fc.constantFrom(...Object.keys(GOOD)), fc.nat(), fc.oneof(nested, scalar), fc.boolean());
    await fc.assert(
      fc.asyncProperty(change, async ([where, at, by, changed]) => {
        const good = { metadata: { name: `n${n++}`, labels: { a: 'b' } }, spec: GOOD[where] };
        const sent = JSON.stringify(changed ? mutate(good, at, by) : good);
        const answer = await control.call('POST', `/${where}`, sent);
        check(answer, `POST ${where} ${sent}`);
        statuses.add(answer.status);
        if (!changed) expect(answer.status, sent).toBe(201);
        // The new object is deleted again: the next one has the same snapshot names.
        if (answer.status !== 201) return;
        const { id } = (answer.json.key ?? answer.json).metadata;
        expect((await control.call('DELETE', `/${where}/by-id/${id}`)).status).toBe(204);
      }),
      { numRuns: 600 },
    );
    expect([...statuses]).toEqual(expect.arrayContaining([201, 400]));
  },
  TIMEOUT,
);

test(
  'no bytes and no path make a 500',
  async () => {
    const bytes = fc.oneof(
      fc.uint8Array({ maxLength: 50 }),
      body.map((value) => Buffer.from(JSON.stringify(value) ?? '').subarray(0, 20)),
    );
    const request = fc.tuple(fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS'), path, bytes);
    await fc.assert(
      fc.asyncProperty(request, async ([method, where, raw]) => {
        const sent = method === 'GET' ? undefined : new Uint8Array(raw);
        const answer = await control.call(method, where, sent);
        check(answer, `${method} ${where} ${Buffer.from(raw).toString('hex')}`);
      }),
      { numRuns: 600 },
    );
  },
  TIMEOUT,
);

test('what the fuzz left behind still loads and exports', async () => {
  await control.catalogCache.refresh();
  expect((await control.call('GET', '/catalog')).status).toBe(200);
  for (const kind of KINDS) expect((await control.call('GET', `/${PLURALS[kind]}`)).status).toBe(200);
});
