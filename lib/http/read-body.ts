import type { IncomingMessage } from 'node:http';
import { type BodyAccount, reserveFor } from '../base/body-budget.ts';
import { ApiError } from '../base/errors.ts';
import { freeIfLarge, growingBuffer } from '../base/growing-buffer.ts';
import { inTurns, nextTurn } from '../base/turns.ts';
import type { BodyFlow } from '../runtime/body-flow.ts';
import { SlowBody, watchRate } from './body-rate.ts';

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

interface ReadOptions {
  /** Null without a body. */
  flow: BodyFlow | null;
  maxBytes: number;
  account: BodyAccount;
  /** Runs when the body may come: the head was good, and there is room for what it announces. */
  begin(): void;
  slowMs: number;
}

/**
 * Reads a body of at most `maxBytes` into one buffer; null when the client goes away in mid-body. One that announces too
 * much is refused before anything is read. Memory is touched only as bytes arrive. Throws `body_too_large`, `overloaded`,
 * `SlowBody`.
 */
async function readBody(req: IncomingMessage, options: ReadOptions): Promise<Buffer | null> {
  const { flow, maxBytes, account, begin, slowMs } = options;
  const length = req.headers['transfer-encoding'] === undefined ? announced(req) : null;
  if (length !== null && length > maxBytes) throw bodyTooLarge(`${length} bytes`, maxBytes);
  account.reserve(length ?? 0);
  begin();
  const body = growingBuffer(length ?? 0);
  const isWhole = await receive(req, flow, slowMs, (chunk) => {
    const size = body.size() + chunk.length;
    if (size > maxBytes) throw bodyTooLarge(`more than ${maxBytes} bytes`, maxBytes);
    if (length === null) account.reserve(reserveFor(size, maxBytes));
    body.append(chunk);
  });
  if (!isWhole) return null;
  return body.whole() ?? (await inTurns(body.join(), body.size()));
}

/**
 * Runs `use` with the body in memory; null when the client goes away in mid-body. The account is closed at the end, and
 * the memory is free: nothing may read the body any more. Throws what `readBody` and `use` throw.
 */
export async function withBody<T extends { statusCode: number }>(
  req: IncomingMessage,
  options: ReadOptions,
  use: (body: Buffer) => Promise<T>,
): Promise<T | null> {
  try {
    const body = await readBody(req, options);
    if (body === null) return null;
    const result = await use(body);
    // Not behind a fault of ours: a write that failed may leave another under way, which reads from it.
    if (result.statusCode < 500) freeIfLarge(body);
    return result;
  } finally {
    options.account.close();
  }
}

/** Hands over the chunks as they come; false when the client goes away before the end. Rejects with what `take` throws. */
function receive(
  req: IncomingMessage,
  flow: BodyFlow | null,
  slowMs: number,
  take: (chunk: Buffer) => void,
): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const breath = breather(flow);
    const watch = watchRate(slowMs, () => settle(() => reject(new SlowBody())));
    const settle = (report: () => void) => {
      watch.stop();
      req.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
      req.on('error', () => {}); // a reset after this point is seen by the response
      report();
    };
    const onData = (chunk: Buffer) => {
      watch.count(chunk.length);
      try {
        take(chunk);
      } catch (error) {
        return settle(() => reject(error));
      }
      breath();
    };
    const onEnd = () => settle(() => resolve(true));
    const onGone = () => settle(() => resolve(false));
    req.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);
    flow?.resume();
  });
}

/** Chunks between two turns of the event loop. One of 1 byte takes about 2 us. */
const CHUNKS_A_TURN = 2000;

/**
 * Lets the event loop go round between chunks, of all bodies together: in chunks of 1 byte, what the system holds of one
 * body takes half a second otherwise. Call it after each chunk.
 */
export function breather(flow: BodyFlow | null, goOn = () => flow?.resume()): () => void {
  let chunks = 0;
  let pausing = false;
  return () => {
    if (++chunks < CHUNKS_A_TURN || pausing) return;
    pausing = true;
    flow?.pause();
    void nextTurn().then(() => {
      chunks = 0;
      pausing = false;
      goOn();
    });
  };
}

/**
 * Takes and drops what is left of a body, and resolves at its end. Some clients read only after they have sent everything:
 * closing on unread bytes would reset the connection, and the answer with it. Bounded in bytes and time.
 */
export function drain(req: IncomingMessage, flow: BodyFlow, maxBytes: number, maxMs: number): Promise<void> {
  flow.resume();
  req.resume();
  if (req.complete || req.destroyed) return Promise.resolve();
  return new Promise((resolve) => {
    let left = maxBytes;
    const breath = breather(flow);
    const giveUp = () => req.socket.destroy();
    const timer = setTimeout(giveUp, maxMs);
    const done = () => {
      clearTimeout(timer);
      resolve();
    };
    req.on('data', (chunk: Buffer) => {
      left -= chunk.length;
      if (left < 0) giveUp();
      breath();
    });
    req.once('end', done);
    req.once('close', done);
  });
}
