import { type BodyAccount, counted } from '../../base/body-budget.ts';
import { type Clock, uuidv7 } from '../../base/clock.ts';
import { pacer } from '../../base/turns.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { collectYoung } from '../../runtime/v8.ts';
import { type CreateBody, type CreateLimits, createBodyReader } from './create-body.ts';

export interface ReceiveDeps {
  payloads: Pick<PayloadStore, 'writeStream' | 'streamBytes'>;
  clock: Clock;
  /** Counts what is in memory of the body, and what is kept of its requests. */
  account: Pick<BodyAccount, 'part'>;
}

/** Requests that were checked, in an object of the store; or a body that names an upload, of which nothing is kept. */
export type ReceivedRequests =
  | (Extract<CreateBody, { kind: 'requests' }> & { input: PayloadRef })
  | Extract<CreateBody, { kind: 'upload' }>;

/** Pieces of the body that may be garbage at a time. */
const COLLECT_BYTES = 8 * 1024 * 1024;

/** Ends a write whose bytes are not wanted. */
class NamesUpload extends Error {
  readonly body: Extract<CreateBody, { kind: 'upload' }>;
  constructor(body: Extract<CreateBody, { kind: 'upload' }>) {
    super('the body names an upload');
    this.body = body;
  }
}

/**
 * Checks a create's body on its way into the store, as one object: the items' spans point into it. A refusal, even at
 * the last byte, ends the write, so that no object is made. Throws as `createBodyReader` does, what the source
 * throws, and the store's errors.
 */
export async function receiveRequests(
  deps: ReceiveDeps,
  source: AsyncIterable<Uint8Array>,
  limits: CreateLimits,
): Promise<ReceivedRequests> {
  const input: PayloadRef = { kind: 'input', id: uuidv7(deps.clock.now()) };
  const reader = createBodyReader(limits, deps.account);
  const pace = pacer();
  let body = null as CreateBody | null;
  async function* checked(): AsyncGenerator<Uint8Array> {
    let uncollected = 0;
    for await (const chunk of source) {
      uncollected += chunk.byteLength;
      if (uncollected > COLLECT_BYTES) {
        uncollected = 0;
        collectYoung();
      }
      await pace(reader.push(Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)));
      yield chunk;
    }
    body = reader.end();
    if (body.kind === 'upload') throw new NamesUpload(body);
  }
  try {
    await deps.payloads.writeStream(input, counted(checked(), deps.account.part(), deps.payloads.streamBytes));
  } catch (error) {
    if (error instanceof NamesUpload) return error.body;
    throw error;
  }
  if (body?.kind !== 'requests') throw new Error('the store has not read the body to its end');
  return { ...body, input };
}
