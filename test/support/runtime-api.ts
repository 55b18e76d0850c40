import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { ROOT } from './root.ts';

const CLIENT = join(ROOT, 'infra/ric/node_modules/aws-lambda-ric');
/** The runtime client as Lambda starts it, with its native part beside. Built by `npm run test:lambda`. */
export const RUNTIME = { program: join(CLIENT, 'index.mjs'), addon: join(CLIENT, 'rapid-client.node') };

/** One execution environment: a process of the runtime client with one function in it. */
export interface LambdaProcess {
  /** From the start of the process until it asks for a first invocation: what Lambda calls the init phase. */
  initMs: number;
  /** Rejects with what the function, or the end of the process, says. */
  invoke<Result>(event: unknown): Promise<Result>;
  stop(): Promise<void>;
}

interface Invocation {
  event: unknown;
  resolve(result: unknown): void;
  reject(error: Error): void;
}

/**
 * Starts a function of an unpacked bundle under the runtime client, with a Runtime API that this process serves. The process
 * is held between two invocations by its open request only, not frozen.
 */
export async function startFunction(
  taskRoot: string,
  handler: string,
  { env, timeoutMs }: { env: Record<string, string>; timeoutMs: number },
): Promise<LambdaProcess> {
  const waiting: Invocation[] = [];
  const running = new Map<string, Invocation>();
  let asking: ServerResponse | null = null;
  let asked = () => {};
  const initialised = new Promise<void>((resolve) => {
    asked = resolve;
  });

  const hand = () => {
    const invocation = asking === null ? undefined : waiting.shift();
    if (asking === null || invocation === undefined) return;
    const id = randomUUID();
    running.set(id, invocation);
    asking.writeHead(200, {
      'content-type': 'application/json',
      'lambda-runtime-aws-request-id': id,
      'lambda-runtime-deadline-ms': String(Date.now() + timeoutMs),
      'lambda-runtime-invoked-function-arn': `arn:aws:lambda:us-east-1:000000000000:function:${handler}`,
      'lambda-runtime-trace-id': 'Root=1-00000000-000000000000000000000000;Parent=0000000000000000;Sampled=0',
    });
    asking.end(JSON.stringify(invocation.event));
    asking = null;
  };
  const server = createServer(async (request, response) => {
    const path = request.url!.replace('/2018-06-01/runtime/', '');
    if (path === 'invocation/next') {
      asking = response;
      asked();
      hand();
      return;
    }
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const text = Buffer.concat(chunks).toString();
    response.writeHead(202).end('{"status":"OK"}');
    const [, id = '', kind] = /^invocation\/([^/]+)\/(response|error)$/.exec(path) ?? [];
    const invocation = running.get(id);
    running.delete(id);
    if (kind === 'response') invocation?.resolve(JSON.parse(text));
    else if (invocation !== undefined) invocation.reject(new Error(text));
    else fail(`${path}: ${text}`);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');

  const started = performance.now();
  const child = spawn(process.execPath, [RUNTIME.program, handler], {
    cwd: taskRoot,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: {
      PATH: process.env.PATH,
      ...env,
      _HANDLER: handler,
      LAMBDA_TASK_ROOT: taskRoot,
      AWS_EXECUTION_ENV: 'AWS_Lambda_nodejs24.x',
      AWS_LAMBDA_RUNTIME_API: `127.0.0.1:${(server.address() as AddressInfo).port}`,
      AWS_LAMBDA_FUNCTION_NAME: handler,
      AWS_LAMBDA_FUNCTION_VERSION: '$LATEST',
      AWS_LAMBDA_FUNCTION_MEMORY_SIZE: '1024',
      AWS_LAMBDA_LOG_GROUP_NAME: `/aws/lambda/${handler}`,
      AWS_LAMBDA_LOG_STREAM_NAME: randomUUID(),
    },
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk: Buffer) => (output += chunk));
  let over: Error | null = null;
  let failed = (_error: Error) => {};
  const failure = new Promise<never>((_, reject) => {
    failed = reject;
  });
  failure.catch(() => {}); // somebody waits for it, or nobody needs it
  function fail(why: string): void {
    over ??= new Error(`${handler} ended: ${why}\n${output}`);
    failed(over);
    for (const one of [...waiting.splice(0), ...running.values()]) one.reject(over);
  }
  const exited = once(child, 'exit').then(([code, signal]) => fail(`status ${code ?? signal}`));
  const stop = async () => {
    child.kill('SIGKILL');
    await exited;
    server.closeAllConnections();
    server.close();
  };
  try {
    await Promise.race([initialised, failure]);
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    initMs: performance.now() - started,
    invoke: <Result>(event: unknown) =>
      new Promise<Result>((resolve, reject) => {
        if (over !== null) return reject(over);
        waiting.push({ event, resolve: resolve as (result: unknown) => void, reject });
        hand();
      }),
    stop,
  };
}
