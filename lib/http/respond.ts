import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { ApiResult, StreamResult } from './event.ts';

export interface RespondOptions {
  /** HEAD: the head of the answer that GET would get, without its body. */
  headOnly: boolean;
  /** A client that takes not one byte for so long is dropped. So is one that takes less than 1 KiB/s for longer. */
  stallMs: number;
  /** The end of the request's body, for a connection that closes behind this answer: it stays open until then. */
  lingers: Promise<void> | null;
}

/**
 * Sends a result and resolves when it is handed to the system (true) or the connection has ended before; never rejects
 * for the client's doing. A stream that throws before its first chunk rejects with nothing sent: the error can still be an answer.
 * Later it destroys the connection and rejects: a cut answer must not look whole.
 */
export async function respond(res: ServerResponse, result: ApiResult, options: RespondOptions): Promise<boolean> {
  if (result.stream && !options.headOnly) return respondStream(res, result, options);
  const payload = Buffer.from(result.stream ? '' : (result.body ?? ''));
  const bodiless = result.statusCode === 204 || result.stream !== undefined;
  res.writeHead(result.statusCode, bodiless ? result.headers : { ...result.headers, 'content-length': payload.length });
  return finish(res, options.headOnly ? undefined : payload, options);
}

async function respondStream(res: ServerResponse, result: StreamResult, options: RespondOptions): Promise<boolean> {
  const chunks = result.stream[Symbol.asyncIterator]();
  let next = await chunks.next();
  res.writeHead(result.statusCode, result.headers);
  try {
    while (!next.done) {
      if (res.destroyed) {
        await chunks.return?.();
        return false;
      }
      if (!write(res, next.value, result.sent)) await writable(res, options.stallMs);
      next = await chunks.next();
    }
  } catch (error) {
    res.destroy();
    throw error;
  }
  // A chunked answer has its end behind its last byte: it cannot linger.
  return finish(res, undefined, { stallMs: options.stallMs, lingers: null });
}

function write(res: ServerResponse, chunk: Buffer, sent: StreamResult['sent']): boolean {
  if (!sent) return res.write(chunk);
  // After an error the system may still read from it.
  return res.write(chunk, (error) => {
    if (!error) sent(chunk);
  });
}

/** A reader that takes less is dropped, once it has had `stallMs` beside. */
const LEAST_BYTES_PER_MS = 1;

/** Resolves when the buffers are empty again, or the connection has ended. */
function writable(res: ServerResponse, stallMs: number): Promise<void> {
  // Node's socket timer is put off by every partial write, and destroys the socket when nothing listens for it.
  res.socket?.setTimeout(stallMs);
  return new Promise((resolve) => {
    const slow = setTimeout(() => res.destroy(), stallMs + res.writableLength / LEAST_BYTES_PER_MS);
    const done = () => {
      clearTimeout(slow);
      res.off('drain', done).off('close', done);
      res.socket?.setTimeout(0);
      resolve();
    };
    res.on('drain', done).on('close', done);
    if (res.destroyed) done();
  });
}

async function finish(
  res: ServerResponse,
  payload: Buffer | undefined,
  { stallMs, lingers }: Pick<RespondOptions, 'stallMs' | 'lingers'>,
): Promise<boolean> {
  res.socket?.setTimeout(stallMs); // Node puts its keep-alive timer in place of this one once all is sent
  if (lingers !== null && res.socket !== null && !res.destroyed) return linger(res, res.socket, payload, lingers);
  return new Promise((resolve) => {
    if (res.destroyed) return resolve(false);
    res.once('close', () => resolve(res.writableFinished));
    res.end(payload);
  });
}

/**
 * Ends the sending side of the connection behind the answer. The connection closes only when the client has sent the rest
 * of its body, or gone. Closed at once, it would be reset, and the answer lost with it.
 */
async function linger(
  res: ServerResponse,
  socket: Socket,
  payload: Buffer | undefined,
  lingers: Promise<void>,
): Promise<boolean> {
  if (payload === undefined || payload.length === 0) res.flushHeaders();
  else res.write(payload);
  const sent = new Promise<boolean>((resolve) => {
    socket.once('close', () => resolve(false));
    socket.end(() => resolve(true));
  });
  await Promise.all([sent, lingers]);
  socket.destroySoon();
  return sent;
}
