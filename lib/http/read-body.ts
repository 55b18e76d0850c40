import type { IncomingMessage } from 'node:http';
import { ApiError } from '../base/errors.ts';

export type BodyRead =
  | { kind: 'whole'; body: Buffer }
  /** `sent` is what the client announced, or that it went past the limit. */
  | { kind: 'too_large'; sent: string }
  /** The client went away in mid-upload: there is nobody to answer. */
  | { kind: 'aborted' };

/** The 400 of an over-large body; it names the limit and the size that was sent. */
export function bodyTooLarge(sent: string, limitBytes: number): ApiError {
  return new ApiError('body_too_large', `request body too large: ${sent} sent, the limit is ${limitBytes} bytes`);
}

/** True when a body is announced, by length or by chunked encoding. */
export function hasBody(req: IncomingMessage): boolean {
  return req.headers['transfer-encoding'] !== undefined || announced(req) > 0;
}

function announced(req: IncomingMessage): number {
  return Number(req.headers['content-length'] ?? 0);
}

/**
 * Reads a body of at most `maxBytes`. One of known length goes into a single buffer of that size; its memory is touched
 * only as bytes arrive, so that announcing 32 MiB costs nothing. One that is too large is refused before anything is read.
 */
export function readBody(req: IncomingMessage, maxBytes: number): Promise<BodyRead> {
  const chunked = req.headers['transfer-encoding'] !== undefined;
  const length = announced(req);
  if (!chunked && length > maxBytes) return Promise.resolve({ kind: 'too_large', sent: `${length} bytes` });

  const whole = chunked ? null : Buffer.allocUnsafeSlow(length);
  const chunks: Buffer[] = [];
  let filled = 0;
  return new Promise((resolve) => {
    const settle = (outcome: BodyRead) => {
      req.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
      req.on('error', () => {}); // a reset after this point is seen by the response
      resolve(outcome);
    };
    const onData = (chunk: Buffer) => {
      if (filled + chunk.length > maxBytes) return settle({ kind: 'too_large', sent: `more than ${maxBytes} bytes` });
      if (whole) chunk.copy(whole, filled);
      else chunks.push(chunk);
      filled += chunk.length;
    };
    const onEnd = () => settle({ kind: 'whole', body: whole ?? Buffer.concat(chunks, filled) });
    const onGone = () => settle({ kind: 'aborted' });
    req.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);
  });
}

/** The body as it comes, with back-pressure; `begin` runs when it is first asked for. Leaves the rest for `drain`. */
export async function* streamBody(req: IncomingMessage, begin: () => void): AsyncGenerator<Buffer> {
  begin();
  // Not destroyed when the reader stops early: it still has to get the reason.
  yield* req.iterator({ destroyOnReturn: false });
}

/**
 * Takes and drops what is left of a body. Some clients read only after they have sent everything: closing on unread bytes
 * would reset the connection, and the answer with it. Bounded in bytes and time.
 */
export function drain(req: IncomingMessage, maxBytes: number, maxMs: number): void {
  if (req.complete || req.destroyed) return;
  let left = maxBytes;
  const giveUp = () => req.socket.destroy();
  const timer = setTimeout(giveUp, maxMs);
  req.on('data', (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) giveUp();
  });
  req.once('end', () => clearTimeout(timer));
  req.once('close', () => clearTimeout(timer));
  req.resume();
}
