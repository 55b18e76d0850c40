import { randomBytes } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { uuidv7 } from '../../../lib/base/clock.ts';
import { ConfigError } from '../../../lib/base/errors.ts';
import { type PayloadRef, type PayloadStore, StorageFull } from '../../../lib/payloads/payload-store.ts';
import { createS3Store } from '../../../lib/payloads/s3-store.ts';
import { type AwsServer, createBucket, startFaux, TEST_CLIENT } from '../../support/aws.ts';
import { type FaultProxy, startFaultProxy } from '../../support/fault-proxy.ts';

let server: AwsServer;
let proxy: FaultProxy;
let store: PayloadStore;

beforeAll(async () => {
  server = await startFaux();
  await createBucket(server.endpoint, 'payloads');
  proxy = await startFaultProxy(server.endpoint);
  store = createS3Store({ bucket: 'payloads', prefix: '', endpoint: proxy.endpoint, client: TEST_CLIENT });
});
afterAll(async () => {
  await store.close();
  await proxy.stop();
  await server.stop();
});
beforeEach(() => {
  proxy.decide = () => null;
  proxy.next = [];
  proxy.seen = [];
});

const SLOW_DOWN = { status: 503, code: 'SlowDown' };
const ref = (): PayloadRef => ({ kind: 'segment', id: uuidv7() });

test('rides out throttling and 5xx, in one request and in parts', async () => {
  const bytes = randomBytes(17 * 1024 * 1024);
  const [small, large] = [ref(), ref()];
  proxy.next = [SLOW_DOWN, { status: 500, code: 'InternalError' }];
  await store.write(small, [bytes.subarray(0, 100)]);
  proxy.next = [SLOW_DOWN, { status: 502, code: 'BadGateway' }, 'reset'];
  await store.write(large, [bytes]);
  proxy.next = [SLOW_DOWN, 'reset'];
  expect((await store.read(small, 0, 100)).equals(bytes.subarray(0, 100))).toBe(true);
  proxy.next = [{ status: 503, code: 'ServiceUnavailable' }, { delayMs: 300 }];
  expect((await store.read(large, 0, bytes.length)).equals(bytes)).toBe(true);
});

test('reads again what broke off in mid-body', async () => {
  const bytes = randomBytes(1024 * 1024);
  const one = ref();
  await store.write(one, [bytes]);
  proxy.next = [{ cutAfter: 1000 }, { cutAfter: 900_000 }];
  expect((await store.read(one, 0, bytes.length)).equals(bytes)).toBe(true);
});

test('never passes a stream that broke off for a whole one', async () => {
  const one = ref();
  await store.write(one, [randomBytes(1024 * 1024)]);
  proxy.next = [{ cutAfter: 500_000 }];
  await expect(async () => {
    for await (const _ of store.stream(one, 0, 1024 * 1024));
  }).rejects.toThrow();
});

test('says StorageFull, without a URL or a key, when writes keep failing', async () => {
  proxy.decide = () => SLOW_DOWN;
  const failure = await store.write(ref(), [Buffer.from('x')]).catch((error) => error);
  expect(failure).toBeInstanceOf(StorageFull);
  expect(failure.message).toBe('payload storage cannot be written: SlowDown');
  expect(proxy.seen.length).toBe(4);
});

test('aborts the parts of a write that failed', async () => {
  proxy.decide = (method, path) => (method === 'PUT' && path.includes('partNumber=2') ? SLOW_DOWN : null);
  await expect(store.write(ref(), [randomBytes(20 * 1024 * 1024)])).rejects.toThrow(StorageFull);
  expect(proxy.seen.filter((line) => line.startsWith('DELETE ') && line.includes('uploadId='))).toHaveLength(1);
});

test('throws when some of many objects could not be deleted', async () => {
  proxy.decide = () => ({ status: 403, code: 'AccessDenied' });
  await expect(store.delete([ref()])).rejects.toThrow();
});

test.each([
  ['InvalidAccessKeyId', 403, 'the access key id is unknown'],
  ['SignatureDoesNotMatch', 403, 'the secret access key is wrong'],
  ['AccessDenied', 403, 'access is denied'],
  ['NoSuchBucket', 404, 'there is no such bucket'],
  ['AuthorizationHeaderMalformed', 400, 'the bucket is in another region than AWS_REGION'],
])('makes %s at the start one sentence that names the setting', async (code, status, reason) => {
  proxy.decide = () => ({ status, code });
  for (const start of [() => store.readMarker(), () => store.writeMarker(uuidv7())]) {
    const failure = await start().catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ConfigError);
    expect((failure as Error).message).toBe(`RELAY_S3_BUCKET "payloads" cannot be used: ${reason}`);
  }
});

test('waits for a store that is away: no configuration error', async () => {
  proxy.decide = () => 'reset';
  const failure = await store.readMarker().catch((error) => error);
  expect(failure).toBeInstanceOf(Error);
  expect(failure).not.toBeInstanceOf(ConfigError);
});
