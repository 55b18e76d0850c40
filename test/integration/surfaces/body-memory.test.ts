import { describe, expect, test } from 'vitest';
import { createBodyBudget } from '../../../lib/base/body-budget.ts';
import type { PayloadStore } from '../../../lib/payloads/payload-store.ts';
import { createFilesApi, creation } from '../../support/files-api.ts';
import { formOf } from '../../support/files-form.ts';
import { createMessageBatchesApi } from '../../support/message-batches.ts';
import { createNativeApi } from '../../support/native-api.ts';
import { createOpenaiApi, ownerOf } from '../../support/openai-api.ts';

const MIB = 1024 * 1024;

/** As S3's, only more so: no budget of a test has room for what a stream may take. */
const hungry = (store: PayloadStore): PayloadStore => ({ ...store, streamBytes: 1024 * MIB });

const requests = (count: number, pad: number) =>
  Array.from({ length: count }, (_, i) => ({ custom_id: `r${i}`, params: { pad: 'x'.repeat(pad) } }));

describe('what is on its way into the store is counted:', () => {
  test('files', async () => {
    const store = await createNativeApi();
    const api = await createFilesApi(32 * MIB, hungry(store.payloads));
    const form = (bytes: number) =>
      creation(
        formOf([
          { name: 'purpose', value: 'batch' },
          { name: 'file', filename: 'a.jsonl', value: Buffer.alloc(bytes, 'x') },
        ]),
      );
    const large = await api.call('node', form(5 * MIB));
    expect([large.status, large.json.error.code]).toEqual([503, 'overloaded']);
    expect(await api.objects('input')).toEqual([]);
    expect((await api.call('node', form(3 * MIB))).status).toBe(200);
    expect(api.native.app.bodies.held()).toBe(0);
    await api.close();
    await store.close();
  });

  test('message batches', async () => {
    const store = await createNativeApi();
    const api = await createMessageBatchesApi({ payloads: hungry(store.payloads) });
    const create = (count: number) =>
      api.call('node', {
        method: 'POST',
        path: '/v1/messages/batches',
        body: JSON.stringify({ requests: requests(count, 50_000) }),
      });
    expect((await create(100)).status).toBe(503);
    expect(await api.objects('input')).toEqual([]);
    expect((await create(50)).status).toBe(200);
    expect(api.native.app.bodies.held()).toBe(0);
    await api.native.close();
    await store.close();
  });

  test('uploads', async () => {
    const api = await createNativeApi(({ payloads }) => ({ payloads: hungry(payloads as PayloadStore) }));
    const put = async (bytes: number) => {
      const made = await api.call('node', { method: 'POST', path: '/v1/uploads', body: JSON.stringify({ bytes }) });
      const answer = await fetch(made.json.upload_url, { method: 'PUT', body: Buffer.alloc(bytes, 'x') });
      await answer.arrayBuffer();
      return answer.status;
    };
    expect([await put(5 * MIB), await put(3 * MIB)]).toEqual([503, 200]);
    expect(api.app.bodies.held()).toBe(0);
    await api.close();
  });
});

test('what is kept of the requests of a message batch is counted', async () => {
  const bodies = createBodyBudget(4 * MIB);
  const api = await createMessageBatchesApi({ app: { bodies } });
  const create = (count: number) =>
    api.call('node', {
      method: 'POST',
      path: '/v1/messages/batches',
      body: JSON.stringify({ requests: requests(count, 0) }),
    });
  expect((await create(20_000)).status).toBe(503);
  expect((await create(1000)).status).toBe(200);
  expect(bodies.held()).toBe(0);
  await api.close();
});

test('a validation waits until its owner has room for the largest line', async () => {
  const bodies = createBodyBudget(64 * MIB);
  const api = await createOpenaiApi(() => ({ bodies }));
  const other = bodies.open(ownerOf('ann'));
  other.reserve(24 * MIB);
  const body = { model: 'm', pad: 'x'.repeat(5 * MIB) };
  const fileId = await api.file(JSON.stringify({ custom_id: 'a', method: 'POST', url: '/v1/chat/completions', body }));
  const { id } = await api.create('node', fileId);
  expect(await api.validator.run()).toBe(1);
  expect((await api.get(id)).status).toBe('validating');
  other.close();
  await api.sql(`update openai_batches set lease_until = clock_timestamp() - interval '1 s'`);
  expect(await api.validator.run()).toBe(1);
  expect((await api.get(id)).status).toBe('in_progress');
  expect(bodies.held()).toBe(0);
  await api.close();
});
