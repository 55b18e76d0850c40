import { sleep } from '../base/clock.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore } from './payload-store.ts';

const TRIES = 3;
const RETRY_MS = 200;

/**
 * The bytes of an object from `from` to `end` (exclusive). A broken read continues from where it was, up to three
 * times in a row; an object that does not exist throws at once.
 */
export async function* readOn(
  payloads: Pick<PayloadStore, 'stream'>,
  ref: PayloadRef,
  from: number,
  end: number,
): AsyncGenerator<Buffer> {
  let at = from;
  for (let failures = 0; at < end; ) {
    try {
      for await (const chunk of payloads.stream(ref, at, end - at)) {
        at += chunk.length;
        failures = 0;
        yield chunk;
      }
      return;
    } catch (error) {
      if (error instanceof PayloadNotFound || ++failures === TRIES) throw error;
      await sleep(RETRY_MS);
    }
  }
}
