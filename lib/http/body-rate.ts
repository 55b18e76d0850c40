import { ApiError } from '../base/errors.ts';

/** A body that brings less than this for `SLOW_MS` is cut off. */
const SLOW_BYTES_PER_S = 1024;
export const SLOW_MS = 60_000;

/** The 408 of a body that comes too slowly. The connection ends with it: the rest would come no faster. */
export class SlowBody extends ApiError {
  constructor() {
    super('invalid_value', 'request body did not arrive in time', { status: 408 });
  }
}

/** Calls `cut` when less than the rate was counted for `slowMs`. */
export function watchRate(slowMs: number, cut: () => void): { count(bytes: number): void; stop(): void } {
  const least = (SLOW_BYTES_PER_S * slowMs) / 1000;
  let counted = 0;
  const timer = setInterval(() => {
    if (counted < least) cut();
    counted = 0;
  }, slowMs);
  return {
    count(bytes) {
      counted += bytes;
    },
    stop: () => clearInterval(timer),
  };
}

/** Waits for arrivals. The time counts that is spent waiting, not the time of the reader's own work. */
export function patienceOf(slowMs: number) {
  const least = (SLOW_BYTES_PER_S * slowMs) / 1000;
  let waitedMs = 0;
  let from = 0;
  const check = (received: number) => {
    if (received - from < least) throw new SlowBody();
    from = received;
    waitedMs = 0;
  };
  return async (arrival: Promise<void>, received: () => number): Promise<void> => {
    const began = performance.now();
    for (let isHere = false; !isHere; ) {
      isHere = await within(arrival, slowMs - waitedMs);
      if (!isHere) check(received());
    }
    waitedMs += performance.now() - began;
    if (waitedMs >= slowMs) check(received());
  };
}

async function within(arrival: Promise<void>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(resolve, Math.max(1, ms), false);
  });
  try {
    return await Promise.race([arrival.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}
