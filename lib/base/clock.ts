import { randomBytes, randomFillSync } from 'node:crypto';

/** Local time and randomness, passed as an argument so that tests own them. Shared time is always Postgres' own. */
export interface Clock {
  /** Milliseconds since the epoch, by this host's clock. For display and object keys only, never for leases. */
  now(): number;
  /** Monotonic milliseconds: measures durations and local deadlines, immune to clock steps. */
  monotonic(): number;
  /** `n` cryptographically random bytes. */
  random(n: number): Buffer;
}

/** The clock of the running process. */
export const systemClock: Clock = {
  now: () => Date.now(),
  monotonic: () => performance.now(),
  random: (n) => randomBytes(n),
};

const HEX = Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0'));
const pool = Buffer.allocUnsafeSlow(4096);
let used = pool.length;

/**
 * A UUIDv7 (RFC 9562 section 5.7): 48 bits of Unix milliseconds, then 74 random bits; lower case.
 * Ids made later sort later, to the millisecond, which is what partitions, lists and object keys rely on.
 */
export function uuidv7(now: number = Date.now()): string {
  if (used + 10 > pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  const at = used;
  used += 10;
  const time = now.toString(16).padStart(12, '0');
  const b = (i: number) => HEX[pool[at + i]!]!;
  const version = HEX[0x70 | (pool[at]! & 0x0f)]! + b(1);
  const variant = HEX[0x80 | (pool[at + 2]! & 0x3f)]! + b(3);
  return `${time.slice(0, 8)}-${time.slice(8)}-${version}-${variant}-${b(4)}${b(5)}${b(6)}${b(7)}${b(8)}${b(9)}`;
}

/** Milliseconds since the epoch that a UUIDv7 carries. */
export function uuidv7Time(id: string): number {
  return Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16);
}

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** True for a lower-case UUID of any version: what ids of this service look like. */
export function isUuid(text: string): boolean {
  return UUID.test(text);
}

/** Resolves after `ms` milliseconds, or at once (without throwing) when `signal` aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  if (signal?.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal?.addEventListener('abort', done, { once: true });
  });
}
