import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { chmod, copyFile, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createTestDatabase } from '../support/postgres.ts';
import { ROOT } from '../support/root.ts';
import { freePort } from '../support/server.ts';
import { spawnUpstream } from '../support/spawn-upstream.ts';
import { call, finished, itemsOf, submit } from './support/calls.ts';
import { catalogOf, KEYS } from './support/catalog.ts';
import { buildStage, parseDockerfile } from './support/dockerfile.ts';
import { startProxy } from './support/proxy.ts';

const stages = parseDockerfile(await readFile(join(ROOT, 'infra/Dockerfile'), 'utf8'));
const stageOf = (name: string) => stages.find((stage) => stage.name === name)!;
const only = (stage: string, name: string) => stageOf(stage).instructions.filter((one) => one.name === name);

describe('infra/Dockerfile', () => {
  test('stands on the pinned Node, and builds the server unless told otherwise', async () => {
    const { devDependencies } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8'));
    expect(stages.at(-1)).toMatchObject({ name: 'server', from: `node:${devDependencies.node}-bookworm-slim` });
    expect(stageOf('base').from).toBe(stageOf('server').from);
    expect(stageOf('lambda').from).toBe('public.ecr.aws/lambda/nodejs:24');
  });

  test('runs without root, and node itself gets the signals', () => {
    expect(only('server', 'USER').map(({ text }) => text)).toEqual(['1000:1000']);
    expect(only('server', 'CMD').map(({ text }) => text)).toEqual(['["node", "bin/server.ts"]']);
    expect(only('server', 'VOLUME')[0]!.args).toEqual(['/data', '/payloads']);
    expect(only('server', 'COPY').some(({ text }) => /--chown/.test(text))).toBe(false); // its own code stays root's
  });

  test('gives the Lambda image a function that the bundle has, where Lambda looks for it', async () => {
    const serverless = await readFile(join(ROOT, 'serverless.yml'), 'utf8');
    expect(serverless).toContain(`handler: dist/lambda/${only('lambda', 'CMD')[0]!.args[0]}`);
    expect(only('lambda', 'COPY')[0]!.args).toEqual(['--from=bundle', '/app/dist/lambda/', '/var/task/']);
  });

  test('makes, step by step, a Lambda image with every function of serverless.yml', {
    timeout: 240_000,
  }, async ({ onTestFinished }) => {
    const home = await mkdtemp(join(tmpdir(), 'relay-image-'));
    onTestFinished(() => rm(home, { recursive: true, force: true, maxRetries: 10 }));
    const { root, cmd } = await buildStage(stages, 'lambda', ROOT, home);
    expect(cmd).toEqual(['handlers/lambda.submit']);
    const bundle = (await import(join(root, 'var/task/handlers/lambda.mjs'))) as Record<string, unknown>;
    const serverless = await readFile(join(ROOT, 'serverless.yml'), 'utf8');
    const names = [...serverless.matchAll(/handler: dist\/lambda\/handlers\/lambda\.(\w+)/g)].map((match) => match[1]!);
    expect(names).toContain('worker');
    for (const name of names) expect(bundle[name], name).toBeTypeOf('function');
    expect(await readdir(join(root, 'var/task/migrations'))).toEqual(await readdir(join(ROOT, 'migrations')));
  });

  test('makes, step by step, a server that runs a batch without root and without writing beside its volumes', {
    timeout: 240_000,
  }, async ({ onTestFinished }) => {
    const home = await mkdtemp(join(tmpdir(), 'relay-image-'));
    onTestFinished(() => rm(home, { recursive: true, force: true, maxRetries: 10 }));
    await chmod(home, 0o755);
    const built = await buildStage(stages, 'server', ROOT, home);
    const { root } = built;

    const [database, upstream] = await Promise.all([createTestDatabase(), spawnUpstream({ countUsers: true })]);
    const proxy = await startProxy(database.dsn); // the socket's directory is not everybody's
    onTestFinished(async () => {
      await proxy.close();
      await upstream.stop();
      await database.close();
    });
    const node = join(home, 'node');
    await copyFile(process.execPath, node); // a checkout may lie where only its owner looks
    await chmod(node, 0o755);
    await writeFile(join(home, 'catalog.yaml'), catalogOf(upstream.url));
    const port = await freePort();
    const isRoot = process.getuid?.() === 0;
    const [uid, gid] = built.user.split(':').map(Number);
    const as = isRoot ? { uid, gid } : {};
    expect([built.env.RELAY_HOST, built.cmd[0]]).toEqual(['0.0.0.0', 'node']);
    const env = {
      ...built.env,
      ...KEYS,
      RELAY_DATA_DIR: root + built.env.RELAY_DATA_DIR,
      RELAY_BATCH_PAYLOAD_DIR: root + built.env.RELAY_BATCH_PAYLOAD_DIR,
      RELAY_PG_DSN: proxy.dsn,
      RELAY_CATALOG: join(home, 'catalog.yaml'),
      RELAY_PORT: String(port),
      RELAY_CONTROL_PORT: '0',
    };
    const cwd = root + built.workdir;
    const child = spawn(node, built.cmd.slice(1), { cwd, env, ...as, stdio: ['ignore', 'ignore', 'pipe'] });
    let errors = '';
    child.stderr.on('data', (chunk: Buffer) => (errors += chunk));
    const exited = once(child, 'exit');
    onTestFinished(() => void child.kill('SIGKILL'));

    const probe = async () => {
      const [status] = await once(spawn(node, built.healthcheck.slice(1), { env, ...as, stdio: 'ignore' }), 'exit');
      return status as number;
    };
    for (const deadline = Date.now() + 60_000; (await probe()) !== 0; ) {
      expect([child.exitCode, Date.now() < deadline, errors]).toEqual([null, true, errors]);
    }
    const at = { url: `http://127.0.0.1:${port}` };
    const id = await submit(at, itemsOf(50, 'image'));
    expect((await finished(at, id)).counts).toEqual({ completed: 50 });
    expect((await call(at, 'GET', `/v1/batches/${id}/results`)).json.results).toHaveLength(50);
    child.kill('SIGTERM');
    expect([await exited, errors]).toEqual([[0, null], expect.stringContaining('Relay Batch is ready')]);
    expect(await probe()).toBe(1);
  });
});
