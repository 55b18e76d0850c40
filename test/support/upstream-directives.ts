import type { ServerResponse } from 'node:http';
import * as zlib from 'node:zlib';
import { answerFor, errorFor } from '../../demo/answers.ts';

/** How a directive answers: it gets the response, the request's path and its model name. */
export type Answer = (response: ServerResponse, path: string, model: string) => void;

/** Sends `body` whole, with its length. */
export function send(
  response: ServerResponse,
  status: number,
  body: string | Buffer,
  headers: Record<string, string> = {},
): void {
  response.writeHead(status, {
    'content-type': 'application/json',
    'content-length': String(Buffer.byteLength(body)),
    'x-request-id': 'req_fake',
    ...headers,
  });
  response.end(body);
}

/** The answer that fits path and model, as JSON text. */
export function goodAnswer(path: string, model: string): string {
  return JSON.stringify(answerFor(path, model) ?? {});
}

/** Sends a status with an error body in the path's form; a 2xx gets the good answer. */
export function sendStatus(
  response: ServerResponse,
  path: string,
  model: string,
  status: number,
  headers: Record<string, string> = {},
): void {
  const good = status >= 200 && status < 300;
  const body = good
    ? goodAnswer(path, model)
    : JSON.stringify(errorFor(path, 'fake_error', `status ${status} asked for`));
  send(response, status, body, headers);
}

const ENCODERS: Record<string, { header: string; encode: (text: string) => Buffer }> = {
  gzip: { header: 'gzip', encode: (text) => zlib.gzipSync(text) },
  deflate: { header: 'deflate', encode: (text) => zlib.deflateSync(text) },
  deflateraw: { header: 'deflate', encode: (text) => zlib.deflateRawSync(text) },
  br: { header: 'br', encode: (text) => zlib.brotliCompressSync(text) },
  zstd: { header: 'zstd', encode: (text) => zlib.zstdCompressSync(text) },
};
const MIB = 1024 * 1024;

/** A good answer that is padded to at least `bytes`. */
function padded(path: string, model: string, bytes: number): string {
  return JSON.stringify({ ...answerFor(path, model), padding: 'x'.repeat(bytes) });
}

/**
 * Reads the directive in a model name; null for an ordinary name, which gets a good answer. `<n>` are numbers:
 *
 *   status-<n>          that status          retry-after-<s>   429 with Retry-After in seconds (-date-<s>: as a date)
 *   slow-<ms>           answers after that   hang              never answers     hang-body   head only, no end
 *   drip                one byte of the body every 20 ms, for ever
 *   cut                 less than Content-Length, then closed     cut-chunked   chunked, ended without its last chunk
 *   cut-<n>             the same with that status
 *   reset               RST instead of an answer                  drop          FIN instead of an answer
 *   garbage             no HTTP at all                            early-hints   103, then a good answer
 *   continue            100, unasked, then a good answer          continue-slow  two of them in pieces, processing  102
 *   wide-<n>            a good answer with headers of n KiB
 *   redirect            302 to a good answer                      close-after   Connection: close
 *   gzip|deflate|deflateraw|br|zstd[-<n>]   encoded, with that status (200)
 *   encoding-<name>     says that Content-Encoding and sends plain JSON
 *   html-<n>            an HTML page         error-in-200, error-beside-200, empty-200, null-200, array-200, string-200,
 *                       latin1-200, bom-200, half-200    bodies that are no response (error-beside: one that is)
 *   refusal-in-200      an error inside that no other try would heal
 *   big-<n>             n MiB, with a length; big-chunked-<n> without; big-gzip-<n> n MiB once decoded
 */
export function directiveOf(model: string): Answer | null {
  const [, name = '', number] = /^(.*?)(?:-(\d+))?$/.exec(model) ?? [];
  const n = Number(number ?? 0);
  if (Object.hasOwn(ENCODERS, name)) {
    const encoder = ENCODERS[name]!;
    return (response, path) => {
      const status = n || 200;
      const text = status < 300 ? goodAnswer(path, model) : JSON.stringify(errorFor(path, 'fake_error', 'encoded'));
      send(response, status, encoder.encode(text), { 'content-encoding': encoder.header });
    };
  }
  if (model.startsWith('encoding-')) {
    return (response, path) =>
      send(response, 200, goodAnswer(path, model), { 'content-encoding': model.slice('encoding-'.length) });
  }
  if (number === undefined) return Object.hasOwn(PLAIN, name) ? PLAIN[name]! : null;
  return Object.hasOwn(NUMBERED, name) ? NUMBERED[name]!(n) : null;
}

const PLAIN: Record<string, Answer> = {
  hang: () => {},
  'hang-body': (response) => {
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': '100' });
    response.write('{');
  },
  drip: (response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    const timer = setInterval(() => response.write(' '), 20);
    response.on('close', () => clearInterval(timer));
  },
  cut: (response, path, model) => cut(response, path, model, 200),
  'cut-chunked': (response, path, model) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write(goodAnswer(path, model), () => response.socket?.end());
  },
  reset: (response) => response.socket?.resetAndDestroy(),
  drop: (response) => response.socket?.end(),
  garbage: (response) => response.socket?.end('SSH-2.0-OpenSSH_9.6\r\n'),
  redirect: (response, path) => send(response, 302, '', { location: path }),
  'close-after': (response, path, model) => send(response, 200, goodAnswer(path, model), { connection: 'close' }),
  continue: (response, path, model) => {
    response.writeContinue();
    send(response, 200, goodAnswer(path, model));
  },
  'continue-slow': (response, path, model) => {
    const interim = 'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Go on\r\nx-more: yes\r\n\r\n';
    const sendFrom = (at: number): void => {
      if (at >= interim.length) send(response, 200, goodAnswer(path, model));
      else response.socket?.write(interim.slice(at, at + 7), () => setTimeout(sendFrom, 1, at + 7));
    };
    sendFrom(0);
  },
  processing: (response, path, model) => {
    response.writeProcessing();
    send(response, 200, goodAnswer(path, model));
  },
  'early-hints': (response, path, model) =>
    response.writeEarlyHints({ link: '</x>; rel=preload' }, () => send(response, 200, goodAnswer(path, model))),
};

const NUMBERED: Record<string, (n: number) => Answer> = {
  wide: (n) => (response, path, model) =>
    send(response, 200, goodAnswer(path, model), { 'x-wide': 'x'.repeat(n * 1024) }),
  status: (n) => (response, path, model) => sendStatus(response, path, model, n),
  'retry-after': (n) => (response, path, model) => sendStatus(response, path, model, 429, { 'retry-after': String(n) }),
  'retry-after-date': (n) => (response, path, model) =>
    sendStatus(response, path, model, 429, { 'retry-after': new Date(Date.now() + n * 1000).toUTCString() }),
  slow: (n) => (response, path, model) => {
    setTimeout(() => send(response, 200, goodAnswer(path, model)), n);
  },
  cut: (n) => (response, path, model) => cut(response, path, model, n),
  html: (n) => (response) =>
    send(response, n, '<html><body>Service unavailable</body></html>', { 'content-type': 'text/html' }),
  'error-in': (n) => (response) => send(response, n, '{"error":{"code":429,"message":"slow down"}}'),
  'refusal-in': (n) => (response) =>
    send(response, n, '{"error":{"type":"invalid_request_error","code":400,"message":"no such engine"}}'),
  'error-beside': (n) => (response, path, model) =>
    send(response, n, JSON.stringify({ error: { code: 1 }, ...answerFor(path, model) })),
  empty: (n) => (response) => send(response, n, ''),
  null: (n) => (response) => send(response, n, 'null'),
  array: (n) => (response) => send(response, n, '[{"choices":[]}]'),
  string: (n) => (response) => send(response, n, '"{\\"choices\\":[]}"'),
  latin1: (n) => (response) => send(response, n, Buffer.from('{"choices":[],"x":"\xe9"}', 'latin1')),
  bom: (n) => (response, path, model) => send(response, n, `\uFEFF${goodAnswer(path, model)}`),
  half: (n) => (response, path, model) => send(response, n, goodAnswer(path, model).slice(0, -10)),
  big: (n) => (response, path, model) => send(response, 200, padded(path, model, n * MIB)),
  'big-chunked': (n) => (response, path, model) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(padded(path, model, n * MIB));
  },
  'big-gzip': (n) => (response, path, model) =>
    send(response, 200, zlib.gzipSync(padded(path, model, n * MIB)), { 'content-encoding': 'gzip' }),
};

function cut(response: ServerResponse, path: string, model: string, status: number): void {
  const body = goodAnswer(path, model);
  response.writeHead(status, { 'content-type': 'application/json', 'content-length': String(body.length + 50) });
  response.write(body, () => response.socket?.end());
}
