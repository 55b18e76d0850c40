import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import process from 'node:process';
import { gzipSync } from 'node:zlib';
import { HOSTILE } from '../../test/support/hostile.ts';

// An upstream in a process of its own, which answers `/<status>/<how>/<name of the input>` with that input, so many bytes of it
// as its argument says. Tells its port.

const bytes = Number(process.argv[2]);
/** An answer in 1-byte chunks is six bytes on the wire for each of its own. */
const TINY = 1024 * 1024;

/** Compresses a thousand times, and is as large as such an answer may be. */
const DENSE = 8 * 1024 * 1024;
let dense: Buffer | undefined;

function chunked(body: Buffer): Buffer {
  const wire = Buffer.alloc(body.length * 6);
  for (const [i, byte] of body.entries()) {
    wire.write('1\r\n', i * 6);
    wire[i * 6 + 3] = byte;
    wire.write('\r\n', i * 6 + 4);
  }
  return wire;
}

const server = createServer((request, response) => {
  request.resume().on('end', () => {
    const [status, how, name] = request.url!.slice(1).split('/').map(decodeURIComponent);
    const body = HOSTILE[name!]!(how === 'tiny' ? TINY : bytes);
    if (how === 'tiny') {
      request.socket.write(`HTTP/1.1 ${status} OK\r\ntransfer-encoding: chunked\r\n\r\n`);
      request.socket.end(Buffer.concat([chunked(body), Buffer.from('0\r\n\r\n')]));
      return;
    }
    if (how === 'dense') {
      response.writeHead(Number(status), { 'content-type': 'application/json', 'content-encoding': 'gzip' });
      dense ??= gzipSync(HOSTILE[name!]!(DENSE));
      response.end(dense);
      return;
    }
    const coding = how === 'gzip' ? { 'content-encoding': 'gzip' } : {};
    response.writeHead(Number(status), { 'content-type': 'application/json', ...coding });
    response.end(how === 'gzip' ? gzipSync(body, { level: 1 }) : body);
  });
});
server.listen(0, '127.0.0.1', () => process.send!((server.address() as AddressInfo).port));
