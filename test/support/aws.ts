import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { CreateBucketCommand, S3Client, type S3ClientConfig } from '@aws-sdk/client-s3';
import { type FauxqsServer, startFauxqs } from 'fauxqs';

/** Any credentials will do: none of these servers checks them. */
export const TEST_CLIENT = {
  region: 'us-east-1',
  credentials: { accessKeyId: 'test', secretAccessKey: 'test' },
} satisfies S3ClientConfig;

/** The same for a process that reads them from its environment. */
export const TEST_AWS_ENV = {
  AWS_REGION: 'us-east-1',
  AWS_ACCESS_KEY_ID: 'test',
  AWS_SECRET_ACCESS_KEY: 'test',
};

/** An S3- and SQS-compatible server. */
export interface AwsServer {
  name: string;
  endpoint: string;
  stop(): Promise<void>;
}

/** fauxqs, in this process; with its own handle to look into queues. */
export async function startFaux(): Promise<AwsServer & { faux: FauxqsServer }> {
  const faux = await startFauxqs({ port: 0, host: '127.0.0.1', logger: false });
  return { name: 'fauxqs', endpoint: `http://127.0.0.1:${faux.port}`, faux, stop: () => faux.stop() };
}

/** True when `moto_server` can be run here. */
export function hasMoto(): boolean {
  return spawnSync('moto_server', ['--help'], { stdio: 'ignore' }).status === 0;
}

/** moto's server, in a process of its own. */
export async function startMoto(): Promise<AwsServer> {
  const port = await freePort();
  const child = spawn('moto_server', ['-H', '127.0.0.1', '-p', String(port)], { stdio: 'ignore' });
  const exited = once(child, 'exit');
  const endpoint = `http://127.0.0.1:${port}`;
  const answers = async () => (await fetch(`${endpoint}/moto-api/`).catch(() => null))?.ok ?? false;
  while (!(await answers())) {
    if (child.exitCode !== null) throw new Error('moto_server ended at once');
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    name: 'moto_server',
    endpoint,
    async stop() {
      child.kill('SIGKILL');
      await exited;
    },
  };
}

/** Makes a bucket. */
export async function createBucket(endpoint: string, bucket: string): Promise<void> {
  const s3 = new S3Client({ ...TEST_CLIENT, endpoint, forcePathStyle: true });
  await s3.send(new CreateBucketCommand({ Bucket: bucket }));
  s3.destroy();
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address !== null ? address.port : 0;
}
