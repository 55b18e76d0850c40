import { createServer, type Socket } from 'node:net';
import { parseArgs } from 'node:util';
import { answerFor } from '../../demo/answers.ts';

/**
 * A fast, obedient upstream in a process of its own, for benches and kill tests: prints its port as the first line.
 * HTTP is read by hand, because node:http itself would be the slower half of a comparison at more than 20,000 req/s.
 *
 *   node test/support/upstream-process.ts [--port 0] [--delay-ms 0] [--status 200] [--count-users] [--answer-bytes 0]
 *
 * `GET /stats` returns {"requests","connections","open","maxOpen"}; with --count-users also `users`: how often each
 * value of the body's `"user":"..."` was sent, so that a test can tell what was called twice.
 */
const { values } = parseArgs({
  options: {
    port: { type: 'string', default: '0' },
    'delay-ms': { type: 'string', default: '0' },
    status: { type: 'string', default: '200' },
    'count-users': { type: 'boolean', default: false },
    'answer-bytes': { type: 'string', default: '0' },
  },
});
const delayMs = Number(values['delay-ms']);
const status = Number(values.status);
const answerBytes = Number(values['answer-bytes']);

const stats = { requests: 0, connections: 0, open: 0, maxOpen: 0 };
const users = new Map<string, number>();
const answers = new Map<string, Buffer>();
const USER = /"user"\s*:\s*"([^"\\]*)"/;
const LENGTH = /\r\ncontent-length: *(\d+)/i;

function render(code: number, body: string): Buffer {
  return Buffer.from(
    `HTTP/1.1 ${code} X\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}

/** The answer to calls of `path`, with a text that brings it to --answer-bytes when that is more than it has. */
function answerTo(path: string): object | null {
  const found = answerFor(path, 'fake-model', '');
  if (answerBytes === 0 || found === null) return answerFor(path, 'fake-model');
  return answerFor(path, 'fake-model', 'x'.repeat(Math.max(0, answerBytes - JSON.stringify(found).length)));
}

function answer(socket: Socket, path: string, body: Buffer): void {
  if (path === '/stats') {
    socket.write(render(200, JSON.stringify({ ...stats, users: Object.fromEntries(users) })));
    return;
  }
  stats.requests++;
  stats.open++;
  if (stats.open > stats.maxOpen) stats.maxOpen = stats.open;
  if (values['count-users']) {
    const user = USER.exec(body.toString('latin1'))?.[1] ?? '';
    users.set(user, (users.get(user) ?? 0) + 1);
  }
  let bytes = answers.get(path);
  if (bytes === undefined) {
    const found = answerTo(path);
    bytes = found === null ? render(404, '{"error":{"message":"not found"}}') : render(status, JSON.stringify(found));
    answers.set(path, bytes);
  }
  if (delayMs === 0) send(socket, bytes);
  else setTimeout(send, delayMs, socket, bytes);
}

function send(socket: Socket, bytes: Buffer): void {
  stats.open--;
  if (!socket.destroyed) socket.write(bytes);
}

const server = createServer({ noDelay: true }, (socket) => {
  stats.connections++;
  let pending: Buffer | null = null;
  socket.on('error', () => socket.destroy());
  socket.on('data', (chunk: Buffer) => {
    let bytes = pending === null ? chunk : Buffer.concat([pending, chunk]);
    pending = null;
    while (bytes.length > 0) {
      const end = bytes.indexOf('\r\n\r\n');
      const head = end < 0 ? '' : bytes.toString('latin1', 0, end);
      const total = end < 0 ? Number.POSITIVE_INFINITY : end + 4 + Number(LENGTH.exec(head)?.[1] ?? 0);
      if (bytes.length < total) {
        pending = bytes;
        return;
      }
      answer(socket, head.split(' ', 2)[1] ?? '', bytes.subarray(end + 4, total));
      bytes = bytes.subarray(total);
    }
  });
});
server.listen(Number(values.port), '127.0.0.1', () => {
  const address = server.address();
  process.stdout.write(`${typeof address === 'object' && address !== null ? address.port : ''}\n`);
});
process.on('SIGTERM', () => process.exit(0));
