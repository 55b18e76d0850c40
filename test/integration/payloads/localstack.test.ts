import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { CreateQueueCommand, SQSClient } from '@aws-sdk/client-sqs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createBucket, startFaux, TEST_CLIENT } from '../../support/aws.ts';
import { type FakeEngine, startFakeEngine } from '../../support/docker-engine.ts';
import { type FaultProxy, startFaultProxy } from '../../support/fault-proxy.ts';
import { hasDocker, startLocalStack } from '../../support/localstack.ts';

/** How testcontainers starts what the tests of S3 and SQS use, seen from the engine's side: it runs without Docker. */
const REAPER = /^testcontainers\/ryuk:/;

let config = '';
let aws: Awaited<ReturnType<typeof startFaux>>;
let gateway: FaultProxy;
let reaper: Server;
let toReaper = '';
let engine: FakeEngine;

beforeAll(async () => {
  // Not the machine's own engine, its credentials, or what it sets for the tests.
  for (const name of Object.keys(process.env))
    if (/^(DOCKER|TESTCONTAINERS|RYUK)_/.test(name)) delete process.env[name];
  config = await mkdtemp(join(tmpdir(), 'relay-docker-'));
  process.env.DOCKER_CONFIG = config;
  aws = await startFaux();
  gateway = await startFaultProxy(aws.endpoint);
  gateway.decide = (_, path) => (path === '/_localstack/health' ? { status: 200, code: 'running' } : null);
  reaper = createServer((socket) => {
    socket.on('data', (chunk) => {
      toReaper += chunk;
      socket.write('ACK\n');
    });
    socket.on('error', () => {});
  });
  reaper.listen(0, '127.0.0.1');
  await once(reaper, 'listening');
  engine = await startFakeEngine((image) =>
    REAPER.test(image)
      ? { port: (reaper.address() as AddressInfo).port, logs: 'Started\n' }
      : { port: Number(new URL(gateway.endpoint).port), logs: '' },
  );
  process.env.DOCKER_HOST = engine.host;
});
afterAll(async () => {
  await engine.close();
  reaper.close();
  await gateway.stop();
  await aws.stop();
  await rm(config, { recursive: true, force: true });
});

test('an engine that takes the connection and stays silent counts as none', async () => {
  engine.silent = true;
  expect(await hasDocker(200)).toBe(false);
  engine.silent = false;
});

test('LocalStack is pulled, started with S3 and SQS on a port of the engine, and removed by its stop', async () => {
  expect(await hasDocker()).toBe(true);
  const server = await startLocalStack();
  expect(engine.pulled).toEqual(
    expect.arrayContaining([
      expect.stringMatching(REAPER),
      expect.stringMatching(/^localstack\/localstack:4\.\d+\.\d+$/),
    ]),
  );
  const made = engine.containers.find(({ request }) => request.Image.startsWith('localstack/'))!;
  expect(made.request.Image).toBe(engine.pulled.find((image) => image.startsWith('localstack/')));
  expect(made.request.Env?.toSorted()).toEqual([
    'EAGER_SERVICE_LOADING=1',
    'SERVICES=s3,sqs',
    'SQS_ENDPOINT_STRATEGY=dynamic',
  ]);
  expect(made.request.ExposedPorts).toEqual({ '4566/tcp': {} });
  expect(made.request.HostConfig?.PortBindings).toEqual({ '4566/tcp': [{ HostPort: '0' }] });

  expect(gateway.seen).toContain('GET /_localstack/health');
  await createBucket(server.endpoint, 'made-through-the-container');
  const sqs = new SQSClient({ ...TEST_CLIENT, endpoint: server.endpoint });
  expect((await sqs.send(new CreateQueueCommand({ QueueName: 'q' }))).QueueUrl).toContain('/q');
  sqs.destroy();

  expect(made.state).toBe('running');
  await server.stop();
  expect(made.state).toBe('removed');
});

test('should the tests be killed, the reaper knows what to remove', () => {
  const [ryuk, ...others] = engine.containers;
  expect(ryuk!.request.Image).toMatch(REAPER);
  expect(ryuk!.request.HostConfig?.Binds?.[0]).toMatch(/:\/var\/run\/docker\.sock:/);
  const session = 'org.testcontainers.session-id';
  expect(others.map(({ request }) => `label=${session}=${request.Labels?.[session]}\r\n`)).toEqual([toReaper]);
});
