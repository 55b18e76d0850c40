import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { createTestDatabase } from '../../support/postgres.ts';
import { startService } from '../../support/service.ts';

const many = (n: number, model = 'any') => Array.from({ length: n }, (_, i) => ({ model, n: i }));

test.each([
  ['without prepared statements, as behind a pooler', { RELAY_PG_PREPARED: 'off' }],
  ['with one database connection', { RELAY_PG_POOL: '1' }],
  ['with every outcome recorded at once', { RELAY_BATCH_FLUSH_MS: '0' }],
  ['with one slot', { RELAY_BATCH_CONCURRENCY: '1' }],
  ['with many slots', { RELAY_BATCH_CONCURRENCY: '64' }],
])('runs, cancels and answers %s', async (_name, env) => {
  const service = await startService({ env });
  try {
    const { id, results } = await service.run('node', [...many(300), { model: 'status-400' }, 'null']);
    expect(results.map(({ state }) => state)).toEqual([...Array(300).fill('completed'), 'discarded', 'discarded']);
    expect(await service.events(id)).toHaveLength(302);
    expect(service.upstream.received).toHaveLength(301);
    expect(service.upstream.maxOpen).toBeLessThanOrEqual(Number(service.app.config.concurrency));
    service.upstream.forget();
    const release = service.upstream.hold();
    const held = await service.submit('node', many(200));
    await service.upstream.waitForRequests(1);
    const path = `/v1/batches/${held}`;
    expect((await service.call('node', { method: 'POST', path: `${path}/cancel` })).status).toBe(200);
    await service.finished(held);
    release();
    const { json } = await service.call('node', { path: `${path}?items=false` });
    expect(json.counts).toEqual({ cancelled: 200 });
  } finally {
    await service.close();
  }
});

test('a replica without slots runs nothing; what is submitted there runs elsewhere', async () => {
  const database = await createTestDatabase();
  const root = await mkdtemp(join(tmpdir(), 'relay-settings-'));
  const shared = { database, payloadDir: join(root, 'payloads') };
  const front = await startService({ ...shared, env: { RELAY_BATCH_CONCURRENCY: '0' } });
  const { upstream } = front;
  try {
    const id = await front.submit('node', many(20));
    front.app.wake({ kind: 'work' });
    const { json } = await front.call('node', { path: `/v1/batches/${id}?items=false` });
    expect(json.counts).toEqual({ available: 20 });
    const back = await startService({ ...shared, upstream });
    try {
      await front.finished(id);
      const [event] = await front.events(id);
      expect(event!.instance).toBe(back.app.instance);
      expect(upstream.received).toHaveLength(20);
      // And a cancel there is heard of here.
      const release = upstream.hold();
      const held = await front.submit('node', many(20));
      await upstream.waitForRequests(21);
      await front.call('node', { method: 'POST', path: `/v1/batches/${held}/cancel` });
      await upstream.waitForClosedEarly();
      await front.finished(held);
      release();
    } finally {
      await back.close();
    }
    expect(await front.sql('select instance from workers')).toEqual([{ instance: front.app.instance }]);
  } finally {
    await front.close();
    await database.close();
    await rm(root, { recursive: true, force: true });
  }
});
