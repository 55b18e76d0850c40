import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { compactBatch } from '../../../lib/batch/results/compact.ts';
import type { PayloadStore } from '../../../lib/payloads/payload-store.ts';
import { createS3Store } from '../../../lib/payloads/s3-store.ts';
import { type AwsServer, createBucket, startFaux, TEST_CLIENT } from '../../support/aws.ts';
import { type Fault, type FaultProxy, startFaultProxy } from '../../support/fault-proxy.ts';
import { createNativeApi, type NativeApi, WAYS } from '../../support/native-api.ts';
import { finish } from '../../support/outcomes.ts';

let server: AwsServer;
let proxy: FaultProxy;
let store: PayloadStore;
let api: NativeApi;

beforeAll(async () => {
  server = await startFaux();
  await createBucket(server.endpoint, 'payloads');
  proxy = await startFaultProxy(server.endpoint);
  store = createS3Store({ bucket: 'payloads', prefix: '', endpoint: proxy.endpoint, client: TEST_CLIENT });
  api = await createNativeApi(() => ({ payloads: store }));
});
afterAll(async () => {
  await api.close();
  await store.close();
  await proxy.stop();
  await server.stop();
});
beforeEach(() => {
  proxy.decide = () => null;
});

const FAULTS: [string, Fault][] = [
  ['throttles', { status: 503, code: 'SlowDown' }],
  ['fails', { status: 500, code: 'InternalError' }],
  ['closes its connections', 'reset'],
];

async function submitted(body: string): Promise<string> {
  const request = JSON.stringify({ shape: 'openai', requests: [0] });
  const id = (await api.call('lambda', { method: 'POST', path: '/v1/batches', body: request })).json.id;
  await finish({ database: api.database, payloads: store }, id, [{ idx: 0, state: 'completed', body }]);
  return id;
}

describe.each(WAYS)('over %s', (way) => {
  // A small document is read, of a large one Lambda asks the size and returns a link.
  test.each(FAULTS)('asks to come again, and to nothing else, while S3 %s', async (_, fault) => {
    const large = `"${'x'.repeat(4_600_000)}"`;
    for (const body of ['"small"', large]) {
      const id = await submitted(body);
      expect(await compactBatch({ ...api.app, db: api.database.db, payloads: store }, id)).toBe(true);
      const results = () => api.call(way, { path: `/v1/batches/${id}/results` });
      proxy.decide = () => fault;
      const answer = await results();
      expect([answer.status, answer.json.error.code]).toEqual([503, 'not_ready']);
      expect(answer.headers.get('retry-after')).toBe('5');
      proxy.decide = () => null;
      expect((await results()).status).toBe(way === 'lambda' && body === large ? 303 : 200);
    }
  });

  test('gives the responses of a batch that is not compacted', async () => {
    const answer = await api.call(way, { path: `/v1/batches/${await submitted('{"a":1}')}/results` });
    expect(answer.json.results).toEqual([{ idx: 0, state: 'completed', response: { a: 1 } }]);
  });
});
