import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, request as send } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { parse } from 'yaml';
import { ROOT } from './root.ts';

interface Statement {
  Action: string[];
  Resource: string | string[];
}

/** Returns the statements of a function's role, as serverless.yml and infra/roles.yml have it. */
async function statementsOf(name: string): Promise<Statement[]> {
  const read = async (path: string) => parse(await readFile(join(ROOT, path), 'utf8'), { logLevel: 'silent' });
  const { role } = (await read('serverless.yml')).functions[name];
  return (await read('infra/roles.yml')).Resources[role].Properties.Policies[0].PolicyDocument.Statement;
}

/** Returns the permissions that a request to S3 needs: the action, and the key (empty: the bucket itself). */
function asked(method: string, url: string, bucket: string, body: Buffer): [action: string, key: string][] {
  const { pathname, searchParams } = new URL(url, 'http://s3');
  const key = decodeURIComponent(pathname.slice(`/${bucket}/`.length));
  if (key === '' && searchParams.has('delete')) {
    return [...body.toString().matchAll(/<Key>([^<]*)<\/Key>/g)].map((found) => ['s3:DeleteObject', found[1]!]);
  }
  if (key === '') return [['s3:ListBucket', '']];
  if (method === 'DELETE') return [[searchParams.has('uploadId') ? 's3:AbortMultipartUpload' : 's3:DeleteObject', key]];
  return [[method === 'GET' || method === 'HEAD' ? 's3:GetObject' : 's3:PutObject', key]];
}

function allows({ Action, Resource }: Statement, action: string, key: string): boolean {
  if (!Action.includes(action)) return false;
  return [Resource].flat().some((text) => {
    if (key === '') return text === 'PayloadBucket.Arn';
    const at = text.slice(text.indexOf('/') + 1); // `${PayloadBucket.Arn}/kind/*`
    return at.endsWith('/*') ? key.startsWith(at.slice(0, -1)) : key === at;
  });
}

/** A way to S3 and SQS that lets a function do what its role allows. SQS is let through: one queue is all there is. */
export interface Guard {
  endpoint: string;
  stop(): Promise<void>;
}

/** Opens it in front of a server; what it refused (403, as S3 does) is added to `denied`. */
export async function startGuard(
  name: string,
  { endpoint, bucket, denied }: { endpoint: string; bucket: string; denied: string[] },
): Promise<Guard> {
  const statements = await statementsOf(name);
  const server = createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks);
    const { method = '', url = '' } = req;
    const refused = url.startsWith(`/${bucket}`)
      ? asked(method, url, bucket, body).filter(([action, key]) => !statements.some((one) => allows(one, action, key)))
      : [];
    if (refused.length > 0) {
      denied.push(...refused.map(([action, key]) => `${name}: ${action} ${key.split('/')[0]}`));
      res.writeHead(403, { 'content-type': 'application/xml' });
      return void res.end(
        '<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>',
      );
    }
    const headers: IncomingHttpHeaders = { ...req.headers, 'content-length': String(body.length) };
    delete headers['transfer-encoding'];
    const onward = send(endpoint + url, { method, headers }, (answer) => {
      res.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(res);
    });
    onward.on('error', () => res.destroy());
    onward.end(body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}
