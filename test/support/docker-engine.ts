import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** A client's request for a new container: the part of the Engine API that these tests look at. */
export interface ContainerRequest {
  Image: string;
  Env?: string[];
  Labels?: Record<string, string>;
  ExposedPorts?: Record<string, unknown>;
  HostConfig?: { Binds?: string[]; PortBindings?: Record<string, { HostPort: string }[]> };
}

/** Stands in for the programs of an image. */
export interface Program {
  /** Port of this machine that each exposed port of the container is bound to. */
  port: number;
  /** The log of the container. */
  logs: string;
}

export interface FakeEngine {
  /** For DOCKER_HOST. */
  host: string;
  /** While true, calls are taken and never answered. */
  silent: boolean;
  pulled: string[];
  /** Containers in the order of their making, each with its end. */
  containers: { request: ContainerRequest; state: 'created' | 'running' | 'stopped' | 'removed' }[];
  close(): Promise<void>;
}

/**
 * As much of a Docker engine as starting and removing a container takes, without containers: `run` says what stands in for
 * each image. Of other calls it answers 501, which names itself in the client's error.
 */
export async function startFakeEngine(run: (image: string) => Program): Promise<FakeEngine> {
  const made = new Map<string, { name: string; program: Program; entry: FakeEngine['containers'][number] }>();
  const engine: FakeEngine = { host: '', silent: false, pulled: [], containers: [], close: async () => {} };

  const create = async (req: IncomingMessage, name: string) => {
    const request = JSON.parse(Buffer.concat(await req.toArray()).toString()) as ContainerRequest;
    const id = randomBytes(32).toString('hex');
    const entry = { request, state: 'created' as const };
    engine.containers.push(entry);
    made.set(id, { name: name || id.slice(0, 12), program: run(request.Image), entry });
    return { Id: id, Warnings: [] };
  };
  const inspect = (id: string) => {
    const { name, program, entry } = made.get(id)!;
    const bound = [{ HostIp: '127.0.0.1', HostPort: String(program.port) }];
    const ports = Object.keys(entry.request.ExposedPorts ?? {}).map((port) => [port, bound]);
    const running = entry.state === 'running';
    return {
      Id: id,
      Name: `/${name}`,
      State: { Status: running ? 'running' : 'exited', Running: running, StartedAt: new Date().toISOString() },
      Config: { Hostname: name, Labels: entry.request.Labels ?? {} },
      HostConfig: entry.request.HostConfig ?? {},
      NetworkSettings: { Ports: Object.fromEntries(ports), Networks: {} },
    };
  };

  const answer = async (req: IncomingMessage, res: ServerResponse) => {
    const { pathname, searchParams } = new URL(req.url ?? '/', 'http://engine');
    const [, kind, ...rest] = pathname.split('/').map(decodeURIComponent);
    const what = `${req.method} ${kind}`;
    const [id = '', action] = [rest[0], rest[1]];
    const send = (status: number, body: unknown) => {
      res.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    };
    const become = (state: FakeEngine['containers'][number]['state']) => {
      made.get(id)!.entry.state = state;
      res.writeHead(204).end();
    };
    if (what === 'GET info') return send(200, { ServerVersion: '0', OperatingSystem: 'fake', OSType: 'linux' });
    if (what === 'GET images') {
      const image = rest.slice(0, -1).join('/');
      return engine.pulled.includes(image) ? send(200, {}) : send(404, { message: `No such image: ${image}` });
    }
    if (what === 'POST images') {
      const tag = searchParams.get('tag');
      engine.pulled.push(`${searchParams.get('fromImage')}${tag ? `:${tag}` : ''}`);
      return send(200, { status: 'done' });
    }
    if (what === 'GET containers' && id === 'json') return send(200, []);
    if (what === 'POST containers' && id === 'create') {
      return send(201, await create(req, searchParams.get('name') ?? ''));
    }
    if (!made.has(id)) return send(404, { message: `no such container: ${id}` });
    if (what === 'GET containers' && action === 'json') return send(200, inspect(id));
    if (what === 'GET containers' && action === 'logs') return sendLogs(res, made.get(id)!.program.logs);
    if (what === 'POST containers' && action === 'start') return become('running');
    if (what === 'POST containers' && action === 'stop') return become('stopped');
    if (what === 'DELETE containers') return become('removed');
    send(501, { message: `the fake engine has no ${req.method} ${pathname}` });
  };

  const server = createServer((req, res) => {
    if (!engine.silent) answer(req, res).catch((error) => res.destroy(error));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  engine.host = `tcp://127.0.0.1:${(server.address() as AddressInfo).port}`;
  engine.close = async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  };
  return engine;
}

/** Frames of an attached stream: its number (1 is standard output), three zeros, the length, the text. */
function sendLogs(res: ServerResponse, text: string): void {
  const head = Buffer.from([1, 0, 0, 0, 0, 0, 0, 0]);
  head.writeUInt32BE(Buffer.byteLength(text), 4);
  res.writeHead(200, { 'content-type': 'application/vnd.docker.multiplexed-stream' });
  res.end(Buffer.concat([head, Buffer.from(text)]));
}
