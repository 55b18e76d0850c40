import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { applyCatalog } from '../../../lib/catalog/apply.ts';
import { parseCatalog } from '../../../lib/catalog/documents/yaml.ts';
import { createSecretBox } from '../../../lib/catalog/secrets/secret-box.ts';
import { type ControlServer, startControl } from '../../support/catalog/control-server.ts';
import { ROOT } from '../../support/root.ts';

const FULL = readFileSync(join(ROOT, 'test/support/catalog/full.yaml'), 'utf8');
const sha256 = (text: string) => createHash('sha256').update(text).digest('hex');
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;

const secretBox = createSecretBox(Buffer.alloc(32, 7));
let control: ControlServer;
beforeAll(async () => {
  control = await startControl({ secretBox });
});
afterAll(() => control?.close());
beforeEach(async () => {
  await control.database.db.query({ name: 'wipe', text: 'delete from catalog_objects', values: [] });
});
const host = (name: string, spec: object = {}) => ({
  kind: 'Host',
  metadata: { name },
  spec: { baseURL: 'http://127.0.0.1:9', ...spec },
});
const make = async (plural: string, name: string, spec: object, metadata: object = {}) => {
  const answer = await control.call('POST', `/${plural}`, { metadata: { name, ...metadata }, spec });
  expect(answer.status, answer.text).toBe(201);
  return answer.json;
};

describe('the admin bearer', () => {
  test('is asked for on every path but healthz and metrics', async () => {
    for (const [method, path] of [
      ['GET', '/hosts'],
      ['POST', '/hosts'],
      ['GET', '/hosts/x'],
      ['PUT', '/hosts/by-id/x'],
      ['DELETE', '/hosts/by-id/x'],
      ['GET', '/catalog'],
      ['POST', '/tokens'],
      ['DELETE', '/tokens/x'],
      ['POST', '/keys/by-id/x/rotate'],
      ['POST', '/keys/by-id/x/revoke'],
      ['POST', '/users/by-id/x/revoke-tokens'],
      ['GET', '/host-keys/x/health'],
      ['POST', '/host-keys/x/reset'],
      ['GET', '/usage/events'],
      ['GET', '/usage/summary'],
      ['GET', '/usage/timeseries'],
      ['PATCH', '/hosts'],
      ['OPTIONS', '/hosts'],
      ['GET', '/no/such/path/at/all'],
    ] as const) {
      const none = await control.call(method, path, undefined, {});
      expect([none.status, none.json.error.code], `${method} ${path}`).toEqual([401, 'missing_api_key']);
      const wrong = await control.call(method, path, undefined, { authorization: 'Bearer admin-token-of-this-tesu' });
      expect([wrong.status, wrong.json.error.code], `${method} ${path}`).toEqual([401, 'invalid_api_key']);
    }
    for (const path of ['/healthz', '/metrics']) expect((await fetch(control.origin + path)).status).toBe(200);
  });

  test('a stranger is refused before the body is read', async () => {
    const answer = await control.call('POST', '/hosts', 'x'.repeat(2 * 1024 * 1024), {});
    expect([answer.status, answer.json.error.code]).toEqual([401, 'missing_api_key']);
  });

  test('without a configured token refuses everything but healthz and metrics', async () => {
    const closed = await startControl({ adminToken: null });
    try {
      for (const authorization of ['Bearer null', 'Bearer ', 'Bearer undefined', 'Bearer admin-token-of-this-test']) {
        expect((await closed.call('GET', '/hosts', undefined, { authorization })).status).toBe(401);
      }
      for (const path of ['/healthz', '/metrics']) expect((await fetch(closed.origin + path)).status).toBe(200);
    } finally {
      await closed.close();
    }
  });
});

describe('creating', () => {
  test('answers 201 with the document and its id, and this replica works with it at once', async () => {
    const { status, json } = await control.call('POST', '/hosts', {
      ...host('a'),
      metadata: { name: 'a', displayName: 'A', labels: { z: '1', team: 'x' } },
    });
    expect(status).toBe(201);
    expect(json).toEqual({
      kind: 'Host',
      metadata: { id: expect.stringMatching(UUID), name: 'a', displayName: 'A', labels: { z: '1', team: 'x' } },
      spec: { baseURL: 'http://127.0.0.1:9' },
    });
    expect(control.catalogCache.current().hosts.get('a')?.id).toBe(json.metadata.id);
  });

  test('lists every fault, each with its field', async () => {
    const { status, json } = await control.call('POST', '/bindings', {
      kind: 'Binding',
      metadata: { name: 'bad name', color: 1 },
      spec: { host: 'gone', adapter: 'grpc', priority: 1.5 },
      extra: true,
    });
    expect(status).toBe(400);
    expect(Object.keys(json.error)).toEqual(['type', 'message', 'code', 'param']);
    expect(json.error).toMatchObject({ type: 'invalid_request_error', code: 'invalid_value', param: 'metadata.name' });
    expect(json.faults).toEqual([
      { field: 'metadata.name', message: 'must be 1-128 characters of A-Z a-z 0-9 . _ -' },
      { field: 'metadata.color', message: 'unknown field' },
      { field: 'extra', message: 'unknown field' },
      { field: 'spec.model', message: 'is required' },
      { field: 'spec.adapter', message: 'must be one of openai, openai_responses, anthropic, openai_embeddings' },
      { field: 'spec.priority', message: 'must be a whole number' },
      { field: 'spec.host', message: 'refers to Host "gone", which does not exist' },
    ]);
    for (const { field, message } of json.faults) expect(json.error.message).toContain(`${field} ${message}`);
  });

  test('refuses dangling references, all of them', async () => {
    const { status, json } = await control.call('POST', '/bindings', {
      metadata: { name: 'b' },
      spec: { model: 'm', host: 'h', pricing: 'p' },
    });
    expect(status).toBe(400);
    expect(json.faults).toEqual([
      { field: 'spec.model', message: 'refers to Model "m", which does not exist' },
      { field: 'spec.host', message: 'refers to Host "h", which does not exist' },
      { field: 'spec.pricing', message: 'refers to Pricing "p", which does not exist' },
    ]);
  });

  test('answers 409 for a name that is taken, also when both come at once', async () => {
    const answers = await Promise.all([1, 2, 3].map(() => control.call('POST', '/hosts', host('twice'))));
    expect(answers.map((a) => a.status).sort()).toEqual([201, 409, 409]);
    expect(answers.find((a) => a.status === 409)!.json.error).toEqual({
      type: 'invalid_request_error',
      message: 'Host "twice" exists already',
      code: 'conflict',
      param: 'metadata.name',
    });
  });

  test('answers 409 for a model whose name is taken by slug', async () => {
    const model = (name: string) => ({ metadata: { name }, spec: { provider: 'p' } });
    expect((await control.call('POST', '/models', model('by.slug'))).status).toBe(201);
    const { status, json } = await control.call('POST', '/models', model('By-Slug'));
    expect([status, json.error.code, json.error.message]).toEqual([409, 'conflict', 'Model "by.slug" exists already']);
  });

  test('takes a body without kind and refuses another one', async () => {
    await make('teams', 't', {});
    expect((await control.call('POST', '/teams', { metadata: { name: 't2' } })).status).toBe(201);
    const other = await control.call('POST', '/teams', { kind: 'Host', metadata: { name: 't3' }, spec: {} });
    expect([other.status, other.json.faults]).toEqual([400, [{ field: 'kind', message: 'must be Team here' }]]);
  });

  test.each([
    ['{"metadata":', 'invalid_json'],
    ['', 'invalid_json'],
    [Uint8Array.from([0x22, 0xff, 0x22]), 'invalid_json'],
    ['null', 'invalid_value'],
    ['[1]', 'invalid_value'],
    ['"text"', 'invalid_value'],
  ])('answers 400 for the body %j', async (body, code) => {
    const { status, json } = await control.call('POST', '/hosts', body);
    expect([status, json.error.code]).toEqual([400, code]);
  });
});

describe('reading', () => {
  test('finds an object by name and by id, and lists a kind by name', async () => {
    const b = await make('hosts', 'b', host('b').spec);
    const a = await make('hosts', 'a', host('a').spec);
    expect((await control.call('GET', '/hosts/a')).json).toEqual(a);
    expect((await control.call('GET', `/hosts/${b.metadata.id}`)).json).toEqual(b);
    expect((await control.call('GET', '/hosts')).json).toEqual({ items: [a, b] });
    expect((await control.call('GET', '/models')).json).toEqual({ items: [] });
  });

  test.each([
    ['GET', '/gadgets'],
    ['POST', '/gadgets'],
    ['GET', '/constructor'],
    ['GET', '/hosts/nope'],
    ['GET', '/hosts/019ae000-0000-7000-8000-000000000000'],
    ['DELETE', '/hosts/by-id/not-a-uuid'],
    ['DELETE', '/hosts/by-id/019ae000-0000-7000-8000-000000000000'],
    ['GET', '/host-keys/nope/health'],
    ['POST', '/host-keys/nope/reset'],
    ['POST', '/keys/by-id/019ae000-0000-7000-8000-000000000000/rotate'],
    ['POST', '/keys/by-id/nope/revoke'],
    ['DELETE', '/tokens/nope'],
    ['POST', '/users/by-id/nope/revoke-tokens'],
  ])('answers 404 to %s %s', async (method, path) => {
    const { status, json } = await control.call(method, path, method === 'POST' ? {} : undefined);
    expect([status, json.error.code]).toEqual([404, 'not_found']);
  });

  test('an id of another kind is unknown', async () => {
    const team = await make('teams', 't', {});
    expect((await control.call('GET', `/hosts/${team.metadata.id}`)).status).toBe(404);
    expect((await control.call('DELETE', `/hosts/by-id/${team.metadata.id}`)).status).toBe(404);
  });
});

test('other methods and paths are 405 and 404 as everywhere', async () => {
  const patched = await control.call('PATCH', '/hosts', {});
  expect([patched.status, patched.headers.get('allow')]).toEqual([405, 'GET, HEAD, POST, OPTIONS']);
  expect((await control.call('GET', '/no/such/path/at/all')).status).toBe(404);
  const huge = await control.call('POST', '/hosts', `"${'x'.repeat(1024 * 1024)}"`);
  expect([huge.status, huge.json.error.code]).toEqual([400, 'body_too_large']);
  const token = await control.call('POST', '/tokens', `"${'x'.repeat(16 * 1024)}"`);
  expect([token.status, token.json.error.code]).toEqual([400, 'body_too_large']);
});

describe('replacing', () => {
  test('replaces metadata and spec whole, keeps the id, and takes back what GET answered', async () => {
    const made = await make('hosts', 'a', { ...host('a').spec, path: '/x', noAuth: true }, { displayName: 'A' });
    const path = `/hosts/by-id/${made.metadata.id}`;
    const same = await control.call('PUT', path, made);
    expect([same.status, same.json]).toEqual([200, made]);
    const { status, json } = await control.call('PUT', path, host('a', { enabled: false }));
    expect(status).toBe(200);
    expect(json).toEqual({
      kind: 'Host',
      metadata: { id: made.metadata.id, name: 'a' },
      spec: { baseURL: 'http://127.0.0.1:9', enabled: false },
    });
    expect(control.catalogCache.current().hosts.get('a')).toMatchObject({ enabled: false, noAuth: false });
  });

  test('refuses another name and another id; an unknown id is 404', async () => {
    const made = await make('hosts', 'a', host('a').spec);
    const path = `/hosts/by-id/${made.metadata.id}`;
    const renamed = await control.call('PUT', path, host('b'));
    expect([renamed.status, renamed.json.faults]).toEqual([
      400,
      [{ field: 'metadata.name', message: 'may not change: it is "a"' }],
    ]);
    const other = { ...made, metadata: { ...made.metadata, id: '019ae000-0000-7000-8000-000000000000' } };
    const moved = await control.call('PUT', path, other);
    expect([moved.status, moved.json.error.param]).toEqual([400, 'metadata.id']);
    expect((await control.call('PUT', '/hosts/by-id/019ae000-0000-7000-8000-000000000000', host('a'))).status).toBe(
      404,
    );
  });
});

describe('deleting', () => {
  test('is refused with the list of who refers to it, and then answers 204', async () => {
    const made = await make('hosts', 'a', host('a').spec);
    const key = await make('host-keys', 'k', { host: 'a', valueFrom: { kind: 'stored' }, value: 'v' });
    const model = await make('models', 'm', { provider: 'p' });
    const binding = await make('bindings', 'b', { model: 'm', host: 'a' });
    const refused = await control.call('DELETE', `/hosts/by-id/${made.metadata.id}`);
    expect([refused.status, refused.json.error]).toEqual([
      409,
      {
        type: 'invalid_request_error',
        message: 'Host "a" is referred to by HostKey "k", Binding "b"',
        code: 'conflict',
        param: null,
      },
    ]);
    for (const [plural, object] of [
      ['bindings', binding],
      ['host-keys', key],
      ['hosts', made],
      ['models', model],
    ] as const) {
      const answer = await control.call('DELETE', `/${plural}/by-id/${object.metadata.id}`);
      expect([answer.status, answer.text]).toEqual([204, '']);
    }
    expect(control.catalogCache.current().hosts.size).toBe(0);
    expect((await control.call('DELETE', `/hosts/by-id/${made.metadata.id}`)).status).toBe(404);
  });

  test('sees every kind of reference', async () => {
    control.env.K1 = 'value-of-host-key-1';
    await make('teams', 'team', {});
    await make('rate-limits', 'limit', { rules: [] });
    await make('rate-limits', 'limit2', { rules: [] });
    await make('policies', 'policy', { rateLimit: 'limit' });
    await make('projects', 'project', { team: 'team', policy: 'policy' });
    await make('hosts', 'host', host('x').spec);
    await make('host-keys', 'hostkey', { host: 'host', valueFrom: { kind: 'env', env: 'K1' }, policy: 'policy' });
    await make('policies', 'policy2', {
      hostKeys: ['hostkey'],
      rateLimits: [{ models: [], rateLimit: 'limit2' }],
      project: 'project',
    });
    await make('users', 'user', { team: 'team' });
    await make('service-accounts', 'robot', { project: 'project', policy: 'policy' });
    await make('models', 'model', { provider: 'p' });
    await make('pricings', 'pricing', { rates: [] });
    await make('bindings', 'binding', { model: 'model', host: 'host', pricing: 'pricing' });
    await make('keys', 'key1', { policy: 'policy', principal: { kind: 'user', name: 'user' } });
    await make('keys', 'key2', { principal: { kind: 'serviceaccount', name: 'robot' } });
    const refusal = async (plural: string, name: string) => {
      const { json } = await control.call('GET', `/${plural}/${name}`);
      const answer = await control.call('DELETE', `/${plural}/by-id/${json.metadata.id}`);
      return answer.json?.error.message.replace(/^.* is referred to by /, '');
    };
    expect(await refusal('teams', 'team')).toBe('Project "project", User "user"');
    expect(await refusal('rate-limits', 'limit')).toBe('Policy "policy"');
    expect(await refusal('rate-limits', 'limit2')).toBe('Policy "policy2"');
    expect(await refusal('policies', 'policy')).toBe(
      'HostKey "hostkey", Project "project", ServiceAccount "robot", Key "key1"',
    );
    expect(await refusal('projects', 'project')).toBe('Policy "policy2", ServiceAccount "robot"');
    expect(await refusal('host-keys', 'hostkey')).toBe('Policy "policy2"');
    expect(await refusal('users', 'user')).toBe('Key "key1"');
    expect(await refusal('service-accounts', 'robot')).toBe('Key "key2"');
    expect(await refusal('models', 'model')).toBe('Binding "binding"');
    expect(await refusal('pricings', 'pricing')).toBe('Binding "binding"');
    expect(await refusal('hosts', 'host')).toBe('HostKey "hostkey", Binding "binding"');
  });
});

describe('host keys', () => {
  test('the stored value is never answered, and a PUT without it keeps it', async () => {
    await make('hosts', 'a', host('a').spec);
    const spec = { host: 'a', valueFrom: { kind: 'stored' } };
    const made = await make('host-keys', 'k', { ...spec, value: 'sk-secret-value' });
    expect(made).toMatchObject({ spec, status: { valueStored: true } });
    const path = `/host-keys/by-id/${made.metadata.id}`;
    const kept = await control.call('PUT', path, { ...made, spec: { ...spec, enabled: false } });
    expect([kept.status, kept.json.spec]).toEqual([200, { ...spec, enabled: false }]);
    expect(control.catalogCache.current().hostKeys.get('k')?.value).toBe('sk-secret-value');
    const changed = await control.call('PUT', path, { ...made, spec: { ...spec, value: 'sk-other-value' } });
    expect(changed.json.spec).toEqual(spec);
    expect(control.catalogCache.current().hostKeys.get('k')?.value).toBe('sk-other-value');
    const everything = [
      (await control.call('GET', '/host-keys')).text,
      (await control.call('GET', '/host-keys/k')).text,
      (await control.call('GET', '/catalog')).text,
      (await control.call('GET', '/host-keys/k/health')).text,
    ].join('');
    expect(everything).not.toMatch(/sk-(secret|other)-value/);
    expect(everything).toContain('"k"');
  });

  test('a stored one needs a value that can be a header, and the fault does not repeat it', async () => {
    await make('hosts', 'a', host('a').spec);
    const spec = { host: 'a', valueFrom: { kind: 'stored' } };
    const none = await control.call('POST', '/host-keys', { metadata: { name: 'k' }, spec });
    expect([none.status, none.json.error.param]).toEqual([400, 'spec.value']);
    for (const value of ['top\r\nsecret: 1', 'top\nsecret', 'top\u0000secret', '', ' topsecret', 'topsecrét', 7]) {
      const answer = await control.call('POST', '/host-keys', { metadata: { name: 'k' }, spec: { ...spec, value } });
      expect([answer.status, answer.json.error.param], JSON.stringify(value)).toEqual([400, 'spec.value']);
      expect(answer.text).not.toContain('top');
    }
  });

  test('health and reset answer for a known key', async () => {
    await make('hosts', 'a', host('a').spec);
    await make('host-keys', 'k', { host: 'a', valueFrom: { kind: 'stored' }, value: 'v' });
    expect((await control.call('GET', '/host-keys/k/health')).json).toMatchObject({ name: 'k', state: 'closed' });
    const reset = await control.call('POST', '/host-keys/k/reset');
    expect([reset.status, reset.json.state]).toEqual([200, 'closed']);
  });
});

describe('keys', () => {
  test('a new key shows its plaintext once and is known at once', async () => {
    const { plaintext, key } = await make('keys', 'k', { enabled: true });
    expect(plaintext).toMatch(/^sk-wr-[A-Za-z0-9_-]{64}$/);
    expect(key).toEqual({
      kind: 'Key',
      metadata: { id: expect.stringMatching(UUID), name: 'k' },
      spec: { enabled: true },
      status: { prefix: plaintext.slice(0, 14) },
    });
    expect(control.catalogCache.current().keysByHash.get(sha256(plaintext))?.id).toBe(key.metadata.id);
    const later = await control.call('GET', '/keys/k');
    expect(later.json).toEqual(key);
    const put = await control.call('PUT', `/keys/by-id/${key.metadata.id}`, { ...key, spec: { enabled: false } });
    expect([put.status, put.json.spec]).toEqual([200, { enabled: false }]);
    expect(control.catalogCache.current().keysByHash.get(sha256(plaintext))).toMatchObject({ enabled: false });
  });

  test('one from the environment never shows it, and needs it', async () => {
    control.env.FROM_ENV = 'plaintext-of-the-environment';
    const { plaintext, key } = await make('keys', 'k', { valueFrom: { kind: 'env', env: 'FROM_ENV' } });
    expect(plaintext).toBeNull();
    expect(key.status).toEqual({ prefix: 'plaintext-of-t' });
    expect(control.catalogCache.current().keysByHash.get(sha256('plaintext-of-the-environment'))?.name).toBe('k');
    const unset = await control.call('POST', '/keys', {
      metadata: { name: 'k2' },
      spec: { valueFrom: { kind: 'env', env: 'NOT_SET' } },
    });
    expect([unset.status, unset.json.error.param]).toEqual([400, 'spec.valueFrom.env']);
    const same = await control.call('POST', '/keys', {
      metadata: { name: 'k3' },
      spec: { valueFrom: { kind: 'env', env: 'FROM_ENV' } },
    });
    expect([same.status, same.json.faults[0].message]).toEqual([400, 'has the value of Key "k"']);
    const rotated = await control.call('POST', `/keys/by-id/${key.metadata.id}/rotate`, {});
    expect(rotated.status).toBe(400);
  });

  test('rotation answers a new plaintext and keeps the old one for the grace', async () => {
    const made = await make('keys', 'k', {});
    const path = `/keys/by-id/${made.key.metadata.id}/rotate`;
    const { status, json } = await control.call('POST', path, { graceSeconds: 60 });
    expect(status).toBe(200);
    expect(json.plaintext).not.toBe(made.plaintext);
    expect(json.key.status).toEqual({
      prefix: json.plaintext.slice(0, 14),
      graceUntil: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
    });
    const { keysByHash } = control.catalogCache.current();
    expect(keysByHash.get(sha256(json.plaintext))).toBe(keysByHash.get(sha256(made.plaintext)));
    const bad = await control.call('POST', path, { graceSeconds: -1 });
    expect([bad.status, bad.json.error.param]).toEqual([400, 'graceSeconds']);
  });

  test('revoking is for good, by route and by document', async () => {
    const a = await make('keys', 'a', {});
    const path = `/keys/by-id/${a.key.metadata.id}`;
    const revoked = await control.call('POST', `${path}/revoke`);
    expect([revoked.status, revoked.json.spec.revoked]).toEqual([200, true]);
    expect((await control.call('POST', `${path}/revoke`)).status).toBe(200);
    const put = await control.call('PUT', path, { metadata: { name: 'a' }, spec: {} });
    expect([put.status, put.json.spec]).toEqual([200, { revoked: true }]);
    const back = await control.call('PUT', path, { metadata: { name: 'a' }, spec: { revoked: false } });
    expect([back.status, back.json.error.param]).toEqual([400, 'spec.revoked']);
    expect((await control.call('POST', `${path}/rotate`, {})).status).toBe(400);

    const b = await make('keys', 'b', {});
    await control.call('PUT', `/keys/by-id/${b.key.metadata.id}`, { metadata: { name: 'b' }, spec: { revoked: true } });
    expect(control.catalogCache.current().keys.get('b')?.revokedAt).toBeTypeOf('number');
    const c = await make('keys', 'c', { revoked: true });
    expect(c.key.spec.revoked).toBe(true);
    expect(control.catalogCache.current().keys.get('c')?.revokedAt).toBeTypeOf('number');
  });
});

test('tokens are issued and revoked', async () => {
  const user = await make('users', 'ada', {});
  const { status, json } = await control.call('POST', '/tokens', { user: 'ada', ttl: 60 });
  expect([status, Object.keys(json)]).toEqual([201, ['token', 'jti', 'expiresAt']]);
  expect((await control.call('DELETE', `/tokens/${json.jti}`)).status).toBe(204);
  expect(control.catalogCache.current().revokedTokens.has(json.jti)).toBe(true);
  expect((await control.call('POST', `/users/by-id/${user.metadata.id}/revoke-tokens`)).status).toBe(200);
  expect(control.catalogCache.current().users.get('ada')?.tokenVersion).toBe(1);
});

test('usage is read with the query as it was sent', async () => {
  const { json } = await control.call('GET', '/usage/events?model=a&model=b%26c');
  expect(json.query).toBe('model=a&model=b%26c');
});

test('an apply overwrites what the control API changed on the same names, and keeps the id', async () => {
  const yaml = 'kind: Host\nmetadata: {name: a}\nspec: {baseURL: "http://127.0.0.1:1"}';
  const apply = () =>
    applyCatalog(control.database.db, parseCatalog([{ file: 'a', text: yaml }]), { env: {}, secretBox: null });
  await apply();
  const made = (await control.call('GET', '/hosts/a')).json;
  await control.call('PUT', `/hosts/by-id/${made.metadata.id}`, host('a'));
  expect(await apply()).toMatchObject({ created: 0, updated: 1 });
  expect((await control.call('GET', '/hosts/a')).json).toEqual(made);
});

describe('the YAML export', () => {
  test('applies back to the same state, with secrets left out', async () => {
    const { db } = control.database;
    const env = {
      OPENAI_API_KEY: 'sk-openai-from-env',
      RELAY_KEY_CI: 'ci-plaintext-for-this-test-only',
      RELAY_KEY_ADA: 'ada-plaintext-for-this-test-only',
    };
    await applyCatalog(db, parseCatalog([{ file: 'full.yaml', text: FULL }]), { env, secretBox });
    const made = await make('keys', 'by-api', { policy: 'default' });
    const first = await control.call('GET', '/catalog');
    expect([first.status, first.headers.get('content-type')]).toEqual([200, 'application/yaml; charset=utf-8']);
    for (const secret of ['sk-example-not-a-key', 'from-env', 'plaintext-for', made.plaintext]) {
      expect(first.text).not.toContain(secret);
    }
    const apply = () => applyCatalog(db, parseCatalog([{ file: 'export', text: first.text }]), { env, secretBox });
    expect(await apply()).toMatchObject({ created: 0, updated: 0, unchanged: 21, version: null, warnings: [] });

    await db.query({ name: 'wipe', text: 'delete from catalog_objects', values: [] });
    const fresh = await apply();
    expect(fresh.created).toBe(20);
    expect(fresh.warnings.map((w) => [w.kind, w.name, w.field])).toEqual([
      ['HostKey', 'openai-2', 'spec.value'],
      ['Key', 'by-api', 'spec.valueFrom'],
    ]);
    const again = (await control.call('GET', '/catalog')).text;
    expect(parseCatalog([{ file: '', text: again }]).documents).toEqual(
      parseCatalog([{ file: '', text: first.text }])
        .documents.filter((d) => d.name !== 'by-api')
        .map((d, i) => ({ ...d, document: i + 1 })),
    );
  });

  test('of an empty catalogue is empty', async () => {
    expect((await control.call('GET', '/catalog')).text).toBe('');
  });
});
