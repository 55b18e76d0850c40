import { once } from 'node:events';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** The fault that a request meets instead of reaching the server. */
export type Fault =
  | { status: number; code: string }
  /** Passed on, but its answer ends after so many bytes of the body. */
  | { cutAfter: number }
  /** Passed on after so many milliseconds. */
  | { delayMs: number }
  /** The connection closes without an answer. */
  | 'reset';

export interface FaultProxy {
  endpoint: string;
  /** Asked for each request; null passes it on. */
  decide: (method: string, path: string) => Fault | null;
  /** Faults for the next requests, one each, before `decide` is called. */
  next: Fault[];
  /** `METHOD path` of every request. */
  seen: string[];
  stop(): Promise<void>;
}

/** A proxy before an S3- or SQS-compatible server that misbehaves on command. */
export async function startFaultProxy(target: string): Promise<FaultProxy> {
  const server = createServer((req, res) => {
    const path = req.url ?? '/';
    proxy.seen.push(`${req.method} ${path}`);
    const fault = proxy.next.shift() ?? proxy.decide(req.method ?? '', path);
    if (fault === 'reset') return void req.socket.destroy();
    if (fault !== null && 'status' in fault) return refuse(req, res, fault);
    if (fault !== null && 'delayMs' in fault) return void setTimeout(() => pass(target, req, res, null), fault.delayMs);
    pass(target, req, res, fault === null ? null : fault.cutAfter);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const proxy: FaultProxy = {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    decide: () => null,
    next: [],
    seen: [],
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  return proxy;
}

function refuse(req: IncomingMessage, res: ServerResponse, { status, code }: { status: number; code: string }): void {
  req.resume();
  const json = req.headers['x-amz-target'] !== undefined;
  const body = json
    ? JSON.stringify({ __type: `com.amazonaws.sqs#${code}`, message: 'injected' })
    : `<?xml version="1.0"?><Error><Code>${code}</Code><Message>injected</Message></Error>`;
  res.writeHead(status, { 'content-type': json ? 'application/x-amz-json-1.0' : 'application/xml' });
  res.end(req.method === 'HEAD' ? undefined : body);
}

function pass(target: string, req: IncomingMessage, res: ServerResponse, cutAfter: number | null): void {
  const onward = request(target + req.url, { method: req.method, headers: req.headers }, (answer) => {
    res.writeHead(answer.statusCode ?? 502, answer.headers);
    let sent = 0;
    answer.on('data', (chunk: Buffer) => {
      if (cutAfter !== null && sent + chunk.length > cutAfter) {
        res.write(chunk.subarray(0, cutAfter - sent), () => res.destroy());
        answer.destroy();
        return;
      }
      sent += chunk.length;
      if (!res.write(chunk)) {
        answer.pause();
        res.once('drain', () => answer.resume());
      }
    });
    answer.on('end', () => res.end());
    answer.on('error', () => res.destroy());
  });
  onward.on('error', () => res.destroy());
  res.on('close', () => onward.destroy());
  req.pipe(onward);
}
