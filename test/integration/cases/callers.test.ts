import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createFileStore } from '../../../lib/payloads/file-store.ts';
import { createStoreCheck } from '../../../lib/payloads/store-check.ts';
import { WAYS, type Way } from '../../support/native-api.ts';
import { createTestDatabase } from '../../support/postgres.ts';
import { type Service, startService } from '../../support/service.ts';

const ADMIN = 'admin-of-this-test';

/** A policy, and a key of it, for each change that a test makes to them. */
const SUBJECTS = WAYS.flatMap((way) =>
  ['revoke', 'delete', 'disable', 'policy', 'limits'].map((what) => `${way}-${what}`),
);
const CATALOG = SUBJECTS.map(
  (name) => `---
kind: Policy
metadata: {name: ${name}}
spec: {models: [test]}
---
kind: Key
metadata: {name: ${name}}
spec: {policy: ${name}, valueFrom: {kind: env, env: KEY_${name.replace('-', '_').toUpperCase()}}}
`,
).join('');

let service: Service;

beforeAll(async () => {
  const keys = SUBJECTS.map((name) => [`KEY_${name.replace('-', '_').toUpperCase()}`, `sk-wr-${name.padEnd(64, '0')}`]);
  service = await startService({
    catalog: CATALOG,
    env: {
      RELAY_BATCH_CONCURRENCY: '1',
      RELAY_CONTROL_PORT: '0',
      RELAY_ADMIN_TOKEN: ADMIN,
      ...Object.fromEntries(keys),
    },
  });
});
afterAll(() => service.close());

async function control(method: string, path: string, body?: unknown) {
  const response = await fetch(`http://127.0.0.1:${service.server.controlPort}/api${path}`, {
    method,
    headers: { authorization: `Bearer ${ADMIN}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  expect([method, path, response.ok, text]).toEqual([method, path, true, text]);
  return text === '' ? null : JSON.parse(text);
}
const idOf = async (plural: string, name: string) => (await control('GET', `/${plural}/${name}`)).metadata.id;

/** Submits two items of which the second starts only after `change`; returns the errors of both. */
async function changeBetween(way: Way, as: string, change: () => Promise<unknown>) {
  const release = service.upstream.hold();
  service.upstream.forget();
  const id = await service.submit(way, [{ model: 'any' }, { model: 'any' }], { as });
  await service.upstream.waitForRequests(1);
  await change();
  release();
  await service.finished(id);
  const rows = await service.sql('select state, error from batch_items where batch_id = $1 order by idx', [id]);
  expect(rows[0]).toEqual({ state: 'completed', error: null });
  expect(service.upstream.received).toHaveLength(1);
  const [, event] = await service.events(id);
  return { id, error: rows[1]!.error, event: event! };
}

describe.each(WAYS)('over %s', (way) => {
  test('case 27: a revoked key ends its waiting items, and can read nothing any more', async () => {
    const as = `${way}-revoke`;
    const keyId = await idOf('keys', as);
    const { id, error, event } = await changeBetween(way, as, () => control('POST', `/keys/by-id/${keyId}/revoke`));
    expect(error).toBe('batch item: credential no longer valid: api key revoked');
    expect(event).toMatchObject({ error_kind: 'credential', status: 0, attempts: 0 });
    for (const [method, path] of [
      ['GET', `/v1/batches/${id}`],
      ['GET', `/v1/batches/${id}/results`],
      ['POST', `/v1/batches/${id}/cancel`],
      ['DELETE', `/v1/batches/${id}`],
      ['GET', '/v1/batches?surface=relay'],
    ] as const) {
      const answer = await service.call(way, { method, path, as });
      expect([answer.status, answer.json.error.code]).toEqual([401, 'api_key_revoked']);
    }
  });

  test('a deleted key ends its waiting items', async () => {
    const as = `${way}-delete`;
    const keyId = await idOf('keys', as);
    const { error } = await changeBetween(way, as, () => control('DELETE', `/keys/by-id/${keyId}`));
    expect(error).toBe('batch item: credential no longer valid: api key deleted');
  });

  test('a disabled key ends its waiting items', async () => {
    const as = `${way}-disable`;
    const key = await control('GET', `/keys/${as}`);
    const { error } = await changeBetween(way, as, () =>
      control('PUT', `/keys/by-id/${key.metadata.id}`, {
        metadata: { name: as },
        spec: { ...key.spec, enabled: false },
      }),
    );
    expect(error).toBe('batch item: credential no longer valid: api key disabled');
  });

  test('a disabled policy is the routing error of its items, and refuses new batches', async () => {
    const as = `${way}-policy`;
    const id = await idOf('policies', as);
    const { error, event } = await changeBetween(way, as, () =>
      control('PUT', `/policies/by-id/${id}`, { metadata: { name: as }, spec: { models: ['test'], enabled: false } }),
    );
    expect(error).toBe('batch item: route "any": policy disabled');
    expect(event).toMatchObject({ error_kind: 'policy_disabled', requested_model: 'any' });
    const refused = await service.call(way, {
      method: 'POST',
      path: '/v1/batches',
      as,
      body: '{"shape":"openai","requests":[1]}',
    });
    expect([refused.status, refused.json.error.code]).toEqual([403, 'policy_disabled']);
  });

  test('case 19: a grant that is taken away holds for items that have not started', async () => {
    const as = `${way}-limits`;
    const id = await idOf('policies', as);
    const { error } = await changeBetween(way, as, () =>
      control('PUT', `/policies/by-id/${id}`, { metadata: { name: as }, spec: { models: ['other'] } }),
    );
    expect(error).toBe('batch item: route "any": model not allowed by policy');
  });
});

test('case 39: a payload directory that is not the one of the database is not shared, and never becomes it', async () => {
  const { db } = service.database;
  const other = createFileStore(`${service.payloadDir}-other`);
  const [same, check] = [createStoreCheck(db, createFileStore(service.payloadDir)), createStoreCheck(db, other)];
  expect([await same(), await check()]).toEqual([null, 'payload directory is not shared']);
  await other.writeMarker('01890000-0000-7000-8000-000000000000');
  expect(await check()).toBe('payload directory is not shared');
  expect(await same()).toBeNull();
});

test('case 39: of replicas that start first together, those of one directory agree, the other is told', async () => {
  const database = await createTestDatabase();
  const root = await mkdtemp(join(tmpdir(), 'relay-shared-'));
  try {
    const checks = ['a', 'a', 'b'].map((name) => createStoreCheck(database.db, createFileStore(join(root, name))));
    // A worker that comes second may have looked before the first one's marker was there: a start asks again.
    await Promise.all(checks.map((check) => check()));
    const [one, two, three] = await Promise.all(checks.map((check) => check()));
    expect(one).toBe(two);
    expect([one, three].sort()).toEqual([null, 'payload directory is not shared'].sort());
  } finally {
    await database.close();
    await rm(root, { recursive: true, force: true });
  }
});
