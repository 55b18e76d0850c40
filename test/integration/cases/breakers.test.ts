import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { keyHealth } from '../../../lib/keypool/health.ts';
import { WAYS } from '../../support/native-api.ts';
import { type Service, startService } from '../../support/service.ts';
import { send, sendStatus } from '../../support/upstream-directives.ts';

// Breakers as owners meet them ("Circuit breakers" in docs/spec/gateway-rules.md).

let service: Service;

const ADMIN = 'admin-token-of-this-test';
const SOLO = `---
kind: HostKey
metadata: {name: solo}
spec: {host: keyed, valueFrom: {kind: stored}, value: sk-old-value}
---
kind: Policy
metadata: {name: solo}
spec: {hostKeys: [solo]}
---
kind: Key
metadata: {name: eve}
spec: {policy: solo, valueFrom: {kind: env, env: TEST_KEY_EVE}}
`;

beforeAll(async () => {
  const masterKey = Buffer.alloc(32, 7).toString('base64');
  const env = { RELAY_CONTROL_PORT: '0', RELAY_ADMIN_TOKEN: ADMIN, RELAY_MASTER_KEY: masterKey };
  service = await startService({ catalog: SOLO, env });
});
afterAll(() => service.close());
beforeEach(async () => {
  service.upstream.forget();
  service.upstream.answerWith(null);
  for (const key of KEYS) service.upstream.failKey(key, null);
  await service.sql('delete from breakers');
  await resetAll();
});

const KEYS = ['sk-host-one', 'sk-host-two'];
const hostKey = (name: string) => service.app.catalog().hostKeys.get(name)!;
const resetAll = async () => {
  for (const name of ['one', 'two']) await service.app.pool.reset(hostKey(name));
};
const items = (count: number, model: string) => Array.from({ length: count }, () => ({ model }));

async function control(method: string, path: string, body?: object) {
  const response = await fetch(`http://127.0.0.1:${service.server.controlPort}/api${path}`, {
    method,
    headers: { authorization: `Bearer ${ADMIN}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  expect([method, path, response.ok, text]).toEqual([method, path, true, text]);
  return JSON.parse(text);
}

/** The upstream answers 500 to the model `k-poison`, whatever the key. */
const poison = () =>
  service.upstream.answerWith(({ path, model }, response) => {
    sendStatus(response, path, model, model === 'k-poison' ? 500 : 200);
  });

/** Sets a breaker of the key that ends so many milliseconds from now, and tells the replica. */
async function openFor(name: string, ms: number, reason = 'rate_limit') {
  await service.sql(
    `insert into breakers (breaker_key, reason, open_until)
      values ($1::text, $2::text, clock_timestamp() + $3::float8 * interval '1 millisecond')`,
    [hostKey(name).breakerKey, reason, ms],
  );
  await service.app.pool.refresh();
}

const until = <T>(condition: () => Promise<T>) => vi.waitUntil(condition, { timeout: 20_000, interval: 20 });

const waiting = (id: string) =>
  service.sql(
    `select idx, attempts, failed_key, extract(epoch from not_before - clock_timestamp())::float8 as seconds
      from batch_items where batch_id = $1::uuid and state = 'available' and not_before is not null`,
    [id],
  );

describe.each(WAYS)('over %s', (way) => {
  test('requests that an upstream always answers 500 end no item of another owner', async () => {
    poison();
    const bad = await service.submit(way, items(30, 'k-poison'), { as: 'bob' });
    const { results } = await service.run(way, items(60, 'keyed'));
    expect(results.map(({ state }) => state)).toEqual(Array(60).fill('completed'));
    await service.finished(bad);
    const other = await service.run(way, items(5, 'any'));
    expect(other.results.every(({ state }) => state === 'completed')).toBe(true);
  });

  test('one item that fails on both keys, again and again, opens no breaker', async () => {
    poison();
    const { results } = await service.run(way, [{ model: 'k-poison' }], { more: { max_attempts: 3 } });
    expect(results[0]!.error).toBe('batch item: upstream status 500');
    expect(service.upstream.countOf('key', KEYS[0]!)).toBe(3);
    expect(await service.sql('select * from breakers')).toEqual([]);
  });

  test('a released item remembers the key that it failed on, and that there were two', async () => {
    const released = async (ways: string[]) => {
      for (const key of KEYS) service.upstream.failKey(key, ways.includes(key) ? 500 : null);
      const id = await service.submit(way, [{ model: 'keyed' }], { more: { max_attempts: 10 } });
      const [item] = await until(async () => {
        const rows = await waiting(id);
        return rows.length > 0 ? rows : null;
      });
      await service.call(way, { method: 'POST', path: `/v1/batches/${id}/cancel` });
      return item!.failed_key;
    };
    await openFor('two', 60_000);
    expect(await released([KEYS[0]!])).toBe(hostKey('one').breakerKey);
    await resetAll();
    expect(await released(KEYS)).toBe('*');
  });

  test.each([401, 402])('after a %i of the only key items wait, and with on_limit fail they end', async (status) => {
    await openFor('two', 0, 'rate_limit');
    await service.sql(`update breakers set reason = 'auth', open_until = null`);
    await service.app.pool.refresh();
    service.upstream.failKey(KEYS[0]!, status);
    const id = await service.submit(way, items(20, 'keyed'), { more: { on_limit: 'wait' } });
    await until(async () => (await waiting(id)).length === 20);
    // At most what was in the slots has called.
    expect(service.upstream.received.length).toBeLessThanOrEqual(8);
    for (const { seconds } of await waiting(id)) expect(seconds).toBeGreaterThan(30);
    service.upstream.forget();
    const { results } = await service.run(way, items(3, 'keyed'));
    expect(results.map(({ error }) => error)).toEqual(Array(3).fill('batch item: no healthy keys in pool'));
    expect(service.upstream.received).toHaveLength(0);
    await service.call(way, { method: 'POST', path: `/v1/batches/${id}/cancel` });
    await service.finished(id);
  });

  test.each([401, 402, 403])(
    'a probe that is refused with %i goes on to the next key, and waits for it',
    async (status) => {
      service.upstream.failKey(KEYS[0]!, status);
      await openFor('one', 0);
      const next = await service.run(way, [{ model: 'keyed' }]);
      expect(next.results[0]!.state).toBe('completed');
      expect(service.upstream.received.map(({ key }) => key)).toEqual(KEYS);
      await resetAll();
      service.upstream.forget();
      await openFor('one', 0);
      await openFor('two', 1500);
      const later = await service.run(way, [{ model: 'keyed' }]);
      expect(later.results[0]!.state).toBe('completed');
      expect(service.upstream.received.map(({ key }) => key)).toEqual(KEYS);
    },
  );

  test.each([
    [
      429,
      '{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}',
    ],
    [
      400,
      '{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access"}}',
    ],
  ])('a %i without credit leaves the items to the next key, and rests its own', async (status, body) => {
    let spent: readonly string[] = [KEYS[0]!];
    service.upstream.answerWith(({ path, model, key }, response) => {
      if (spent.includes(key)) send(response, status, body);
      else sendStatus(response, path, model, 200);
    });
    const { results } = await service.run(way, items(20, 'keyed'));
    expect(results.map(({ state }) => state)).toEqual(Array(20).fill('completed'));
    expect(service.upstream.countOf('key', KEYS[0]!)).toBeLessThanOrEqual(8);
    const health = await keyHealth(service.app.db, hostKey('one'));
    expect(health).toMatchObject({ state: 'open', reason: 'account', models: [] });

    // Without the other key they wait for the next try, and make no call until then.
    spent = KEYS;
    const id = await service.submit(way, items(20, 'keyed'), { more: { on_limit: 'wait' } });
    await until(async () => (await waiting(id)).length === 20);
    for (const { seconds } of await waiting(id)) expect(seconds).toBeGreaterThan(500);
    expect(service.upstream.countOf('key', KEYS[1]!)).toBeLessThanOrEqual(20 + 8);
    spent = [];
    await resetAll(); // wakes them
    await service.finished(id);
    const { json } = await service.call(way, { path: `/v1/batches/${id}?items=false` });
    expect(json.counts).toEqual({ completed: 20 });
  });

  test('a new value of the only key ends the wait, and health shows the new one', async () => {
    const value = `sk-new-value-${way}`;
    service.upstream.answerWith(({ path, model, key }, response) => {
      sendStatus(response, path, model, key === value ? 200 : 401);
    });
    const id = await service.submit(way, items(3, 'keyed'), { as: 'eve', more: { on_limit: 'wait' } });
    await until(async () => (await waiting(id)).length === 3);
    expect(await control('GET', '/host-keys/solo/health')).toMatchObject({ state: 'open', reason: 'auth', models: [] });
    const { metadata } = await control('GET', '/host-keys/solo');
    await control('PUT', `/host-keys/by-id/${metadata.id}`, {
      metadata: { name: 'solo' },
      spec: { host: 'keyed', valueFrom: { kind: 'stored' }, value },
    });
    await service.finished(id);
    const states = await service.sql('select state from batch_items where batch_id = $1::uuid', [id]);
    expect(states).toEqual(Array(3).fill({ state: 'completed' }));
    expect(await control('GET', '/host-keys/solo/health')).toMatchObject({ state: 'closed' });
  });
});
