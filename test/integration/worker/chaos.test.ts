import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { WAYS } from '../../support/native-api.ts';
import { createTestDatabase } from '../../support/postgres.ts';
import { type Service, startService } from '../../support/service.ts';
import { startUpstream } from '../../support/upstream.ts';

const KINDS = ['any', 'any', 'slow-3', 'slow-20', 'status-400', 'status-500', 'cut', 'error-in-200', 'null-200'];
const BAD = ['null', '{"model":"none"}', '{"stream":true,"model":"any"}'];
const BATCHES = 24;

/** A small generator of numbers in [0, 1): the same seed, the same run. */
function numbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}

test.each([1, 2])(
  'two replicas, cancels, stops and broken connections: each item ends once, is recorded once, and is sent as often as it says (%i)',
  async (seed) => {
    const random = numbers(seed);
    const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)]!;
    const root = await mkdtemp(join(tmpdir(), 'relay-chaos-'));
    const [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
    const shared = { database, upstream, payloadDir: join(root, 'payloads') };
    const first = await startService(shared);
    const more: Service[] = [await startService(shared)];
    try {
      const ids: string[] = [];
      for (let b = 0; b < BATCHES; b++) {
        const items = Array.from({ length: 1 + Math.floor(random() * 40) }, (_, i) =>
          random() < 0.1 ? pick(BAD) : { model: pick(KINDS), id: `${b}/${i}` },
        );
        const options = random() < 0.3 ? { max_attempts: 2 } : {};
        const [way, as, headers] = [pick(WAYS), pick(['ann', 'bob']), { 'idempotency-key': `${b}` }];
        ids.push(await again(() => first.submit(way, items, { as, more: options, headers })));
        if (random() < 0.3) await cancelOne(first, pick(ids));
        if (b % 8 === 5) {
          await more.pop()!.close();
          more.push(await startService(shared));
        }
        if (b % 5 === 3) {
          await first.sql(
            `select pg_terminate_backend(pid) from pg_stat_activity
            where datname = current_database() and application_name = 'relay-batch'`,
          );
        }
      }
      for (const id of ids) await first.finished(id);

      const sent = new Map<string, number>();
      for (const { body } of upstream.received) {
        const { id } = JSON.parse(body.toString());
        sent.set(id, (sent.get(id) ?? 0) + 1);
      }
      for (const [b, id] of ids.entries()) {
        const [batch] = await first.sql('select * from batches where id = $1', [id]);
        expect(batch).toMatchObject({ open_items: 0 });
        const items = await first.sql('select * from batch_items where batch_id = $1 order by idx', [id]);
        const events = await first.events(id);
        expect(events.map((event) => event.batch_idx)).toEqual(items.map((item) => item.idx));
        for (const [i, item] of items.entries()) {
          const { attempts, error_kind } = events[i]!;
          const calls = sent.get(`${b}/${i}`) ?? 0;
          expect(['completed', 'discarded', 'cancelled']).toContain(item.state);
          expect(error_kind === null, `${b}/${i}`).toBe(item.state === 'completed');
          // A call that was given up may not have reached the upstream; no other is unaccounted for.
          expect(calls, `${b}/${i} ${item.state} ${item.error}`).toBeLessThanOrEqual(Number(attempts));
          if (item.state === 'completed') expect(calls).toBeGreaterThanOrEqual(1);
        }
        const owner = (await first.call('node', { path: `/v1/batches/${id}` })).status === 200 ? 'ann' : 'bob';
        const { json } = await first.call('node', { path: `/v1/batches/${id}/results`, as: owner });
        expect(json.results.map((result: { state: string }) => result.state)).toEqual(items.map(({ state }) => state));
        for (const result of json.results) {
          if (result.state === 'completed') expect(result.response.choices).toHaveLength(1);
        }
      }
      expect(await first.sql('select 1 from batch_cursors')).toEqual([]);
      expect(await first.sql('select 1 from limit_concurrency')).toEqual([]);
      expect(await first.sql(`select 1 from batch_items where state in ('available', 'running')`)).toEqual([]);
    } finally {
      for (const service of [first, ...more]) await service.close();
      await Promise.all([upstream.close(), rm(root, { recursive: true, force: true })]);
      await database.close();
    }
  },
  60_000,
);

/** Repeats a call that is answered 503 because the database connection was cut, as a client does. */
async function again<T>(ask: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (!String(error).includes('answered 503')) throw error;
    }
  }
}

async function cancelOne(service: Service, id: string): Promise<void> {
  for (const as of ['ann', 'bob']) {
    const status = await again(async () => {
      const answer = await service.call('node', { method: 'POST', path: `/v1/batches/${id}/cancel`, as });
      if (answer.status === 503) throw new Error('cancel was answered 503');
      return answer.status;
    });
    expect([200, 404]).toContain(status);
  }
}
