import { execFile, spawnSync } from 'node:child_process';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { Context } from 'aws-lambda';
import { beforeAll, describe, expect, test } from 'vitest';
import { INFERENCE_ENDPOINTS } from '../../handlers/inference.ts';
import type * as Functions from '../../handlers/lambda.ts';
import { plaintextOf } from '../support/auth-catalog.ts';
import { countdown, startPlatform, wakeEvent } from '../support/lambda.ts';
import { createTestDatabase } from '../support/postgres.ts';
import { ROOT } from '../support/root.ts';
import { startUpstream } from '../support/upstream.ts';
import { itemsOf } from './support/calls.ts';
import { catalogOf } from './support/catalog.ts';

const TEMPLATE = join(ROOT, 'dist/sls/cloudformation-template-update-stack.json');
const ZIP = join(ROOT, 'dist/sls/relay-batch.zip');

// biome-ignore lint/suspicious/noExplicitAny: a CloudFormation template is of any form
type Resource = { Type: string; Properties: any };
let resources: Record<string, Resource>;
const ofType = (type: string) => Object.entries(resources).filter(([, { Type }]) => Type === type);

beforeAll(async () => {
  // Without any account: neither credentials nor a network are there for it to use.
  const env = { PATH: process.env.PATH, HOME: process.env.HOME, AWS_EC2_METADATA_DISABLED: 'true' };
  await promisify(execFile)('npm', ['run', '-s', 'package'], { cwd: ROOT, env });
  resources = JSON.parse(await readFile(TEMPLATE, 'utf8')).Resources;
}, 120_000);

describe('npm run package', () => {
  test('gives every route of the three surfaces and the usage calls a function', () => {
    const routes = ofType('AWS::ApiGatewayV2::Route').map(([, { Properties }]) => Properties.RouteKey as string);
    const endpoints = INFERENCE_ENDPOINTS.filter(({ lambda }) => lambda !== null);
    expect(routes.sort()).toEqual(endpoints.map(({ method, pattern }) => `${method} ${pattern}`).sort());
  });

  test('runs all functions on nodejs24.x and arm64, the worker for 900 s and on a reservation that a flag leaves out', () => {
    const functions = ofType('AWS::Lambda::Function');
    expect(functions).toHaveLength(13);
    for (const [, { Properties }] of functions) {
      expect([Properties.Runtime, Properties.Architectures]).toEqual(['nodejs24.x', ['arm64']]);
    }
    expect(resources.WorkerLambdaFunction!.Properties).toMatchObject({
      Timeout: 900,
      ReservedConcurrentExecutions: { 'Fn::If': ['Reserve', 8, { Ref: 'AWS::NoValue' }] },
    });
    const reserved = functions.filter(([, { Properties }]) => 'ReservedConcurrentExecutions' in Properties);
    expect(reserved.map(([name]) => name)).toEqual(['WorkerLambdaFunction']);
  });

  test('wakes the worker by one message at a time, eight at once, and keeps what fails', () => {
    const [[, source]] = ofType('AWS::Lambda::EventSourceMapping') as [[string, Resource]];
    expect(source.Properties).toMatchObject({
      BatchSize: 1,
      ScalingConfig: { MaximumConcurrency: 8 },
      FunctionResponseTypes: ['ReportBatchItemFailures'],
    });
    expect(resources.WakeQueue!.Properties).toMatchObject({
      VisibilityTimeout: 5400,
      MessageRetentionPeriod: 3600,
      RedrivePolicy: { maxReceiveCount: 10 },
    });
    expect(resources.WakeDeadLetters!.Properties.MessageRetentionPeriod).toBe(14 * 86_400);
  });

  test('keeps payloads encrypted and private, and lets only stale uploads expire', () => {
    const { Properties } = resources.PayloadBucket!;
    expect(Properties.BucketEncryption).toBeDefined();
    expect(Object.values(Properties.PublicAccessBlockConfiguration)).toEqual([true, true, true, true]);
    expect(Properties.LifecycleConfiguration.Rules).toEqual([
      { Id: 'abort-stale-uploads', Status: 'Enabled', AbortIncompleteMultipartUpload: { DaysAfterInitiation: 1 } },
    ]);
  });

  test('allows each role named actions on named resources only', () => {
    const roles = ofType('AWS::IAM::Role');
    expect(roles.length).toBeGreaterThanOrEqual(5);
    for (const [, { Properties }] of roles) {
      for (const policy of Properties.Policies ?? []) {
        for (const { Action, Resource } of policy.PolicyDocument.Statement) {
          for (const action of [Action].flat()) expect(action).toMatch(/^[a-z0-9]+:[A-Za-z]+$/);
          for (const resource of [Resource].flat()) {
            const text = typeof resource === 'string' ? resource : JSON.stringify(Object.values(resource)[0]);
            expect(text).not.toMatch(/^"?\*"?$/);
            expect(text).toMatch(/PayloadBucket|WakeQueue|LogGroup/);
          }
        }
      }
    }
    const used = ofType('AWS::Lambda::Function').map(([, { Properties }]) => Properties.Role['Fn::GetAtt'][0]);
    expect(roles.map(([name]) => name).filter((name) => !used.includes(name))).toEqual([]);
  });

  test('has nothing of the service in the clear that Secrets Manager holds', async () => {
    const { RELAY_PG_DSN, RELAY_MASTER_KEY } = resources.WorkerLambdaFunction!.Properties.Environment.Variables;
    for (const value of [RELAY_PG_DSN, RELAY_MASTER_KEY]) {
      expect(JSON.stringify(value)).toContain('{{resolve:secretsmanager:');
    }
  });

  test('zips at most 2 MB', async () => {
    expect((await stat(ZIP)).size).toBeLessThanOrEqual(2_000_000);
  });

  const hasLint = spawnSync('cfn-lint', ['--version'], { stdio: 'ignore' }).status === 0;
  test.skipIf(!hasLint)(
    'has a template that cfn-lint (when it is on the PATH) finds no error in',
    { timeout: 60_000 },
    () => {
      const { status, stdout } = spawnSync('cfn-lint', ['--non-zero-exit-code', 'error', TEMPLATE], {
        encoding: 'utf8',
      });
      expect([status, status === 0 ? '' : stdout]).toEqual([0, '']);
    },
  );

  test('bundles functions that run a batch from submit to results', { timeout: 60_000 }, async ({ onTestFinished }) => {
    const dir = await mkdtemp(join(tmpdir(), 'relay-bundle-'));
    const [database, upstream] = await Promise.all([createTestDatabase(), startUpstream()]);
    await writeFile(join(dir, 'catalog.yaml'), catalogOf(upstream.url));
    const keys = { RELAY_KEY_ANN: plaintextOf('ann'), RELAY_KEY_BOB: plaintextOf('bob'), UPSTREAM_KEY_1: 'k' };
    const platform = await startPlatform({ ...database, catalog: join(dir, 'catalog.yaml'), env: keys });
    onTestFinished(async () => {
      await platform.close();
      await upstream.close();
      await database.close();
      await rm(dir, { recursive: true, force: true });
    });
    Object.assign(process.env, platform.env);
    const functions = (await import(join(ROOT, 'dist/lambda/handlers/lambda.mjs'))) as typeof Functions;
    const left = countdown();
    const context = { getRemainingTimeInMillis: left } as Context;
    const call = async (name: 'submit' | 'results', body: string, id = '') => {
      const event = {
        rawPath: '',
        rawQueryString: '',
        headers: { authorization: `Bearer ${plaintextOf('ann')}` },
        pathParameters: { id },
        body,
        isBase64Encoded: false,
        requestContext: { requestId: 'r' },
      };
      const { statusCode, body: text = '', isBase64Encoded } = await functions[name](event as never, context);
      return { statusCode, json: JSON.parse(Buffer.from(text, isBase64Encoded ? 'base64' : 'utf8').toString()) };
    };
    const made = await call('submit', itemsOf(20, 'bundle'));
    expect([made.statusCode, made.json.total_items]).toEqual([202, 20]);
    expect(await functions.worker(wakeEvent(), context)).toEqual({ batchItemFailures: [] });
    await functions.sweep({ housekeep: true }, context);
    const { json } = await call('results', '', made.json.id);
    expect(json.results.map((one: { idx: number; state: string }) => [one.idx, one.state])).toEqual(
      Array.from({ length: 20 }, (_, i) => [i, 'completed']),
    );
  });
});
