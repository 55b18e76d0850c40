import type { Socket } from 'node:net';
import { uuidv7 } from '../base/clock.ts';
import { errorBody } from './error-form.ts';
import { requestIdHeaders } from './event.ts';

const LINGER_MS = 1000;

/**
 * Answers what Node's parser refused: 400, 431 for headers over the limit, 408 for a request that did not arrive in
 * time; then closes. With an answer already under way on the connection it only cuts it: a second head in the middle of a
 * body would be read as part of it.
 */
export function onMalformed(error: NodeJS.ErrnoException, socket: Socket, answering: boolean): void {
  if (error.code === 'ECONNRESET' || answering || !socket.writable) {
    socket.destroy();
    return;
  }
  const [status, reason, message] = verdictOn(error.code);
  const requestId = uuidv7();
  // Neither path nor headers are known here: the parser gave up.
  const body = errorBody('openai', { code: 'invalid_value', message, param: null, status, requestId });
  const headers = Object.entries(requestIdHeaders(requestId)).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.on('error', () => {});
  socket.end(
    `HTTP/1.1 ${status} ${reason}\r\ncontent-type: application/json\r\n${headers.join('')}` +
      `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
  socket.resume();
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  socket.once('close', () => clearTimeout(timer));
}

function verdictOn(code: string | undefined): [status: number, reason: string, message: string] {
  if (code === 'HPE_HEADER_OVERFLOW') return [431, 'Request Header Fields Too Large', 'request headers too large'];
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return [408, 'Request Timeout', 'request did not arrive in time'];
  return [400, 'Bad Request', 'malformed HTTP request'];
}
