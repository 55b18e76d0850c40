import type { IncomingMessage } from 'node:http';
import type { BodyFlow } from '../runtime/body-flow.ts';
import { patienceOf } from './body-rate.ts';
import { breather } from './read-body.ts';

/** A block of a streamed body. Small chunks are put together: each costs 400 bytes beside its own. */
const BLOCK_BYTES = 64 * 1024;
/** A chunk from here on is a block of its own. */
const LARGE_CHUNK = 16 * 1024;

/**
 * The body as it comes, with back-pressure; `begin` runs when it is first asked for. Throws when the client goes away in
 * mid-body, and `SlowBody`. Leaves the rest for `drain`.
 */
export async function* streamBody(
  req: IncomingMessage,
  { flow, begin, slowMs }: { flow: BodyFlow | null; begin(): void; slowMs: number },
): AsyncGenerator<Buffer> {
  begin();
  const blocks = blocksOf(req, flow);
  const patience = patienceOf(slowMs);
  try {
    for (;;) {
      while (blocks.isEmpty()) await patience(blocks.arrival(), blocks.received);
      const block = blocks.take();
      if (block === null) return;
      yield block;
    }
  } finally {
    blocks.stop();
  }
}

/** Collects chunks in blocks, and lets the client wait while one is full. */
function blocksOf(req: IncomingMessage, flow: BodyFlow | null) {
  const full: Buffer[] = [];
  let block = Buffer.alloc(0);
  let filled = 0;
  let held = 0;
  let received = 0;
  let end: 'whole' | 'cut' | null = null;
  let arrived = () => {};

  const close = () => {
    if (filled > 0) full.push(block.subarray(0, filled));
    block = Buffer.alloc(0);
    filled = 0;
  };
  const copy = (chunk: Buffer) => {
    for (let at = 0; at < chunk.length; ) {
      if (filled === block.length) {
        close();
        block = Buffer.allocUnsafeSlow(BLOCK_BYTES);
      }
      const copied = chunk.copy(block, filled, at);
      at += copied;
      filled += copied;
    }
  };
  const goOn = () => {
    if (held < BLOCK_BYTES) flow?.resume();
  };
  const breath = breather(flow, goOn);
  const onData = (chunk: Buffer) => {
    received += chunk.length;
    held += chunk.length;
    if (chunk.length >= LARGE_CHUNK) {
      close();
      full.push(chunk);
    } else copy(chunk);
    if (held >= BLOCK_BYTES) flow?.pause();
    else breath();
    // In the next turn: the small chunks that come in this one go into the same block.
    if (held >= BLOCK_BYTES) arrived();
    else if (held === chunk.length) setImmediate(() => arrived());
  };
  const onEnd = () => {
    end ??= 'whole';
    arrived();
  };
  const onGone = () => {
    end ??= 'cut';
    arrived();
  };
  req.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);

  return {
    isEmpty: () => held === 0 && end === null,
    /** Resolves with the next chunk, or the end. */
    arrival: () =>
      new Promise<void>((resolve) => {
        arrived = resolve;
        goOn();
      }),
    received: () => received,
    /** The oldest bytes; null behind the last ones. Throws when the client has gone. */
    take(): Buffer | null {
      if (full.length === 0) close();
      const next = full.shift();
      if (next !== undefined) {
        held -= next.length;
        goOn();
        return next;
      }
      if (end === 'whole') return null;
      throw new Error('the connection ended before the request body did');
    },
    stop() {
      req.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
      req.on('error', () => {}); // a reset after this point is seen by the response
      flow?.pause(); // until the rest is drained
    },
  };
}
