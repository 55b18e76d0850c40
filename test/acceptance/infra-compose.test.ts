import { spawnSync } from 'node:child_process';
import { readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { ENVIRONMENT, loadConfig } from '../../lib/app/config.ts';
import { ROOT } from '../support/root.ts';
import { parseDockerfile } from './support/dockerfile.ts';

const FILE = join(ROOT, 'infra/compose.yml');
const GIVEN: Record<string, string> = {
  RELAY_ADMIN_TOKEN: 'token',
  RELAY_MASTER_KEY: Buffer.alloc(32).toString('base64'),
};

// biome-ignore lint/suspicious/noExplicitAny: services are of many forms
type Service = any;

/** `${NAME}`, `${NAME:-default}` and `${NAME:?message}` as compose reads them. */
const interpolate = (text: string, given: Record<string, string>) =>
  text.replace(/\$\{(\w+)(?::([-?])([^}]*))?\}/g, (_, name: string, kind?: string, rest = '') => {
    const value = given[name] || undefined;
    if (value === undefined && kind === '?') throw new Error(`${name}: ${rest}`);
    return value ?? rest;
  });

const text = await readFile(FILE, 'utf8');
const compose = parse(interpolate(text, GIVEN), { merge: true });
const services = Object.entries(compose.services as Record<string, Service>);
const replicas = services.filter(([name]) => name.startsWith('replica-'));

describe('infra/compose.yml', () => {
  test('has two replicas, Postgres, and servers that stand for S3 and SQS', () => {
    expect(services.map(([name]) => name)).toEqual(['replica-1', 'replica-2', 'postgres', 's3', 'bucket', 'sqs']);
  });

  test('pins what it pulls, and builds what it does not', async () => {
    for (const [, { image, build }] of services) {
      if (build === undefined) {
        expect(image).toMatch(/^[a-z0-9/-]+:\S*\d/);
        continue;
      }
      const context = join(dirname(FILE), build.context);
      const stages = parseDockerfile(await readFile(join(context, build.dockerfile), 'utf8'));
      expect(stages.map(({ name }) => name)).toContain(build.target);
    }
  });

  test('waits only for what exists and can say that it is there', () => {
    for (const [, service] of services) {
      for (const [name, { condition }] of Object.entries<Service>(service.depends_on ?? {})) {
        const other = compose.services[name];
        expect(other).toBeDefined();
        if (condition === 'service_healthy') expect(other.healthcheck.test[0]).toBe('CMD');
        else if (condition === 'service_completed_successfully') expect(other.restart).toBeUndefined();
        else expect(condition).toBe('service_started');
      }
    }
  });

  test('mounts volumes that are declared, and files that are there', async () => {
    const used = services.flatMap(([, service]) => (service.volumes ?? []).map((one: string) => one.split(':')[0]));
    const named = used.filter((source: string) => !source.startsWith('.'));
    expect([...new Set(named)].sort()).toEqual(Object.keys(compose.volumes).sort());
    expect(named).toHaveLength(Object.keys(compose.volumes).length); // nobody shares a volume
    for (const source of used.filter((one: string) => one.startsWith('.'))) {
      expect((await stat(join(dirname(FILE), source))).size).toBeGreaterThan(0);
    }
  });

  test('opens ports on this machine only, each once', () => {
    const ports = services.flatMap(([, service]) => service.ports ?? []) as string[];
    expect(ports.every((port) => /^127\.0\.0\.1:\d+:(8080|8081)$/.test(port))).toBe(true);
    expect(new Set(ports.map((port) => port.split(':')[1])).size).toBe(4);
  });

  test('gives each replica a configuration that it takes, of a queue and a bucket that are made', async () => {
    const queues = await readFile(join(dirname(FILE), 'compose/elasticmq.conf'), 'utf8');
    for (const [name, { environment, read_only, tmpfs, cap_drop }] of replicas) {
      const known = Object.keys(environment).filter((one) => one.startsWith('RELAY_'));
      expect(known.filter((one) => !(one in ENVIRONMENT.shape))).toEqual([]);
      const config = loadConfig(environment);
      expect(config).toMatchObject({ instanceId: name, payloadStore: 's3', queue: 'sqs' });
      expect(compose.services.bucket.command.at(-1)).toBe(`s3/${config.s3Bucket}`);
      expect(queues).toMatch(new RegExp(`^  ${config.sqsQueueUrl!.split('/').at(-1)} \\{$`, 'm'));
      const hosts = [
        config.pgDsn,
        config.sqsQueueUrl,
        environment.AWS_ENDPOINT_URL_S3,
        environment.AWS_ENDPOINT_URL_SQS,
      ];
      for (const url of hosts) expect(Object.keys(compose.services)).toContain(new URL(url).hostname);
      expect([read_only, tmpfs, cap_drop]).toEqual([true, ['/tmp'], ['ALL']]);
    }
    const [a, b] = replicas.map(([, { environment }]) => environment);
    expect(a.RELAY_PUBLIC_URL).not.toBe(b.RELAY_PUBLIC_URL);
  });

  test('does not start without secrets of its own', () => {
    expect(() => interpolate(text, {})).toThrow('RELAY_ADMIN_TOKEN: set');
    expect(() => interpolate(text, { RELAY_ADMIN_TOKEN: 'x' })).toThrow('RELAY_MASTER_KEY: set 32 bytes');
  });

  const hasCompose = spawnSync('docker', ['compose', 'version'], { stdio: 'ignore' }).status === 0;
  test.skipIf(!hasCompose)('is read by docker compose (when it is there) without a complaint', () => {
    const { status, stderr } = spawnSync('docker', ['compose', '-f', FILE, 'config', '--quiet'], {
      encoding: 'utf8',
      env: { ...process.env, ...GIVEN },
    });
    expect([status, stderr]).toEqual([0, '']);
  });
});
