import { createHash } from 'node:crypto';
import { crc32 } from 'node:zlib';

/**
 * Most bytes that are scanned, hashed or copied between two looks at the clock: 0.6 ms for the worst input of the slowest
 * scanner. Whatever is not larger may be worked on in one go.
 */
export const STEP_BYTES = 64 * 1024;

/**
 * Work that continues for longer lets the event loop go round. With one step more that is far below 50 ms on any
 * machine.
 */
const TURN_MS = 2;

const waiting: (() => void)[] = [];

function next(): void {
  waiting.shift()!();
  if (waiting.length > 0) setImmediate(next);
}

/**
 * Resolves when the event loop has gone round. Of all waiting jobs, one continues each time: 64 large answers that come
 * at once would else hold the loop together, each with its part.
 */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => {
    waiting.push(resolve);
    if (waiting.length === 1) setImmediate(next);
  });
}

/** Work that stops after every STEP_BYTES. */
export type Steps<T> = Generator<void, T, void>;

/** Runs all steps in one go: for work of few steps, and for tests. */
export function atOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

/**
 * Runs the steps in turns of the event loop. Work on more than a step's `bytes` begins in the next turn: many large inputs
 * may come in the same one.
 */
export async function inTurns<T>(steps: Steps<T>, bytes: number): Promise<T> {
  if (bytes > STEP_BYTES) await nextTurn();
  return pacer()(steps);
}

/** Runs steps in turns, one after the other. */
export type Pacer = <T>(steps: Steps<T>) => Promise<T>;

/** For work that comes in parts, each of few steps: together they take no longer turns than one. */
export function pacer(): Pacer {
  let from = performance.now();
  return async (steps) => {
    for (;;) {
      while (performance.now() - from < TURN_MS) {
        const { done, value } = steps.next();
        if (done) return value;
      }
      await nextTurn();
      from = performance.now();
    }
  };
}

/** Cuts bytes into pieces of one step each. */
export function* piecesOf(bytes: Buffer): Generator<Buffer, void, void> {
  for (let at = 0; at < bytes.length; at += STEP_BYTES) yield bytes.subarray(at, at + STEP_BYTES);
}

/** A CRC32 of so many bytes takes a millisecond, and is made at once. */
export const SUM_AT_ONCE_BYTES = 1024 * 1024;

/** CRC32, unsigned, as zlib's; a promise of it for many bytes. */
export function checksum(bytes: Buffer): number | Promise<number> {
  return bytes.length <= SUM_AT_ONCE_BYTES ? crc32(bytes) : inTurns(crc32InSteps(bytes), bytes.length);
}

/** The same in steps. */
export function* crc32InSteps(bytes: Buffer): Steps<number> {
  let crc = 0;
  for (const piece of piecesOf(bytes)) {
    crc = crc32(piece, crc);
    yield;
  }
  return crc;
}

/** SHA-256 of the parts one after the other. */
export function* sha256InSteps(...parts: Buffer[]): Steps<Buffer> {
  const sha256 = createHash('sha256');
  for (const bytes of parts) {
    for (const piece of piecesOf(bytes)) {
      sha256.update(piece);
      yield;
    }
  }
  return sha256.digest();
}

/** Whether the bytes of `text` are in there. At once, a search for what is nearly there takes 0.8 s in 64 MiB. */
export function* includesInSteps(bytes: Buffer, text: string): Steps<boolean> {
  const wanted = Buffer.from(text);
  for (let at = 0; at < bytes.length; at += STEP_BYTES) {
    if (bytes.subarray(at, at + STEP_BYTES + wanted.length - 1).includes(wanted)) return true;
    yield;
  }
  return false;
}
