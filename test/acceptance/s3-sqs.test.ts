import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createBucket, startFaux, TEST_AWS_ENV } from '../support/aws.ts';
import { type Fault, type FaultProxy, startFaultProxy } from '../support/fault-proxy.ts';
import { call, completed, eventually, expectRecordedOnce, finished, itemsOf, submit } from './support/calls.ts';
import { openScene, type Scene } from './support/scene.ts';

let aws: Awaited<ReturnType<typeof startFaux>>;
let proxy: FaultProxy;

beforeAll(async () => {
  aws = await startFaux();
  proxy = await startFaultProxy(aws.endpoint);
});
afterAll(async () => {
  await proxy.stop();
  await aws.stop();
});
beforeEach(() => {
  proxy.decide = () => null;
});

/** The settings of a replica with a bucket and a queue of the test's own, both reached through the proxy. */
async function cloudOf(name: string): Promise<Record<string, string>> {
  await createBucket(aws.endpoint, name);
  const { queueUrl } = aws.faux.createQueue(name);
  return {
    ...TEST_AWS_ENV,
    AWS_ENDPOINT_URL: proxy.endpoint,
    RELAY_PAYLOAD_STORE: 's3',
    RELAY_S3_BUCKET: name,
    RELAY_S3_PREFIX: 'relay',
    RELAY_QUEUE: 'sqs',
    RELAY_SQS_QUEUE_URL: queueUrl,
  };
}

/** SQS calls are POSTs to the root; S3 calls name the bucket. */
const isSqs = (method: string, path: string) => method === 'POST' && path === '/';

async function two(scene: Scene, name: string, options: { speed?: number } = {}) {
  const [database, upstream, env] = await Promise.all([
    scene.database(),
    scene.countingUpstream({ delayMs: 5 }),
    cloudOf(name),
  ]);
  const start = (home: string) => scene.start({ dsn: database.dsn, upstream, home, env, ...options });
  const [a, b] = await Promise.all([start('a'), start('b')]);
  return { a: a!, b: b!, database, upstream };
}

describe('the container on S3 and SQS', { timeout: 120_000 }, () => {
  test('runs batches on two replicas that share nothing but Postgres, bucket and queue', async ({ onTestFinished }) => {
    const { a, b, database, upstream } = await two(await openScene(onTestFinished), 'plain');
    const id = await submit(a, itemsOf(2000, 'plain'));
    await finished(b, id);
    await expectRecordedOnce(b, database.db, id, 2000);
    const { users } = await upstream.stats();
    expect(Object.values(users).every((n) => n === 1)).toBe(true);
    expect(Object.keys(users)).toHaveLength(2000);
    const page = await call(a, 'GET', `/v1/batches/${id}/results?after=1989&limit=10`);
    expect(page.json.results.map((r: { idx: number }) => r.idx)).toEqual(
      Array.from({ length: 10 }, (_, i) => 1990 + i),
    );
    expect(aws.faux.inspectQueue('plain')!.messages.ready).toEqual([]);
  });

  test('takes a body and results beyond one part', async ({ onTestFinished }) => {
    const { a, database } = await two(await openScene(onTestFinished), 'large');
    const filler = 'x'.repeat(1024 * 1024);
    const requests = Array.from({ length: 20 }, (_, i) => ({ model: 'fast', user: `l-${i}`, messages: [], filler }));
    const id = await submit(a, JSON.stringify({ shape: 'openai', requests }));
    await finished(a, id);
    await expectRecordedOnce(a, database.db, id, 20);
  });

  test('runs nothing twice because of duplicate, late or foreign messages', async ({ onTestFinished }) => {
    const { a, database, upstream } = await two(await openScene(onTestFinished), 'storm');
    const id = await submit(a, itemsOf(300, 'storm'));
    for (let i = 0; i < 40; i++) {
      aws.faux.sendMessage('storm', '{"kind":"work"}', i % 4 === 0 ? { delaySeconds: 1 } : {});
    }
    for (const odd of ['', 'x', 'null', '[]', '{"kind":"cancel"}', '{"kind":7}']) {
      aws.faux.sendMessage('storm', odd === '' ? ' ' : odd);
    }
    await finished(a, id);
    await expectRecordedOnce(a, database.db, id, 300);
    const { users } = await upstream.stats();
    expect(Object.values(users).every((n) => n === 1)).toBe(true);
  });

  test('takes submits and finishes them while SQS is away, and receives again when it is back', async ({
    onTestFinished,
  }) => {
    const { a, b, database } = await two(await openScene(onTestFinished), 'nosqs');
    let refused = 0;
    proxy.decide = (method, path) => {
      if (!isSqs(method, path)) return null;
      refused++;
      return 'reset';
    };
    const id = await submit(a, itemsOf(200, 'nosqs'));
    await finished(b, id);
    await expectRecordedOnce(b, database.db, id, 200);
    // Until the pollers pause for seconds between two tries (of three requests each): they must come out of that.
    const before = refused;
    await eventually(
      async () => refused - before,
      (times) => times >= 30,
    );
    proxy.decide = () => null;
    const again = await submit(b, itemsOf(50, 'back'));
    await finished(a, again);
    await eventually(
      async () => aws.faux.inspectQueue('nosqs')!.messages,
      ({ ready, inflight }) => ready.length + inflight.length === 0,
    );
  });

  test('finishes when every message is lost', async ({ onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const { a, database } = await two(scene, 'lost');
    // Sends seem to work, and nothing ever comes out.
    proxy.decide = (method, path) => (isSqs(method, path) ? { delayMs: 600_000 } : null);
    const id = await submit(a, itemsOf(100, 'lost'));
    await finished(a, id);
    await expectRecordedOnce(a, database.db, id, 100);
  });

  test('rides out S3 errors and slowness under load', async ({ onTestFinished }) => {
    const { a, b, database, upstream } = await two(await openScene(onTestFinished), 'badsthree', { speed: 4 });
    const id = await submit(a, itemsOf(800, 'bad'));
    let n = 0;
    const faults: (Fault | null)[] = [
      { status: 503, code: 'SlowDown' },
      { delayMs: 400 },
      null,
      null,
      null,
      'reset',
      { status: 500, code: 'InternalError' },
    ];
    proxy.decide = (method, path) => (isSqs(method, path) ? null : faults[n++ % faults.length]!);
    await completed(b, id, 300);
    // Then S3 is wholly away for a while: nothing is lost, nothing fails.
    proxy.decide = (method, path) => (isSqs(method, path) ? null : { status: 503, code: 'ServiceUnavailable' });
    await new Promise((resolve) => setTimeout(resolve, 3000));
    proxy.decide = () => null;
    const status = await finished(a, id);
    expect(status.counts).toEqual({ completed: 800 });
    await expectRecordedOnce(a, database.db, id, 800);
    const { users } = await upstream.stats();
    expect(Object.values(users).every((times) => times === 1)).toBe(true);
  });

  test('answers 503 storage_full to a submit while S3 takes no writes', async ({ onTestFinished }) => {
    const { a } = await two(await openScene(onTestFinished), 'nowrites');
    proxy.decide = (method) => (method === 'PUT' ? { status: 503, code: 'SlowDown' } : null);
    const answer = await call(a, 'POST', '/v1/batches', itemsOf(1, 'w'));
    expect([answer.status, answer.json.error.code]).toEqual([503, 'storage_full']);
  });

  test.for([
    ['SignatureDoesNotMatch', 'the secret access key is wrong'],
    ['NoSuchBucket', 'there is no such bucket'],
  ] as const)('ends the start with one sentence when S3 says %s', async ([code, reason], { onTestFinished }) => {
    const scene = await openScene(onTestFinished);
    const [database, upstream] = await Promise.all([scene.database(), scene.countingUpstream()]);
    const env = await cloudOf(`start-${code.toLowerCase()}`);
    proxy.decide = () => ({ status: 403, code });
    const server = await scene.start({ dsn: database.dsn, upstream, env, waitUntilReady: false });
    expect(await server.exited).toBe(1);
    expect(server.errors()).toContain(`cannot be used: ${reason}\n`);
  });
});
