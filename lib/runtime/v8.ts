import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { ResourceLimits } from 'node:worker_threads';

// Uses of V8 beyond the language that its types know. `test/unit/runtime/v8.test.ts` fails when V8 changes.

type Collect = (options: { type: 'minor' }) => void;

let collect: Collect | null = null;

/**
 * Frees what was used for a moment and is garbage now. A body of 256 MiB comes in pieces of 64 KiB whose memory is
 * outside of V8's heap. V8 lets 64 MiB of that pile up before it looks: reading a body and dropping it grew the
 * process by 53 MiB. A minor collection takes about a millisecond, and the function is only there behind a flag, which
 * may be set at any time.
 */
export function collectYoung(): void {
  if (collect === null) {
    setFlagsFromString('--expose-gc');
    collect = runInNewContext('gc') as Collect;
  }
  collect({ type: 'minor' });
}

/**
 * Heap of a thread that holds a few strings at a time (`lib/payloads/file-reader.ts`). With V8's own limits the thread
 * grew the process by 43 to 48 MiB over 3000 groups of 600 reads; with these by 28, at the same speed.
 */
export const SMALL_THREAD: ResourceLimits = { maxYoungGenerationSizeMb: 2, maxOldGenerationSizeMb: 32 };

/**
 * A value that JSON.stringify writes as the digits it was made of. A number would round a sum beyond 2^53, and a string
 * would be another type to the caller. A part of the language since 2025, which TypeScript does not know yet.
 */
export const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown };
