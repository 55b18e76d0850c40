import { type Clock, uuidv7 } from '../../base/clock.ts';
import { inTurns, sha256InSteps } from '../../base/turns.ts';
import type { Attribution } from '../../model/batch.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { itemsAt } from './record.sql.ts';
import {
  findReplay,
  type PreparedBatch,
  type RecordDeps,
  type Recorded,
  recordBatch,
  refuseOverPending,
} from './record.ts';
import { checksumItems } from './slice.ts';
import type { Submission } from './submission.ts';
import { useUpload } from './use-upload.ts';

export interface SubmitDeps extends RecordDeps {
  payloads: Pick<PayloadStore, 'write' | 'delete'>;
  clock: Clock;
}

export interface SubmitRequest extends Submission {
  surface: string;
  attribution: Attribution;
  /** The bytes as they were sent; the item spans point into them. */
  body: Buffer;
  /** 1-255 printable ASCII characters; null without one. */
  idempotencyKey: string | null;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
  /** The upload that `body` was read from; it is used up with the batch. */
  upload?: { id: string; sha256: Buffer };
  /** The digest that the Idempotency-Key is compared by; that of `body` unless given. */
  bodySha256?: Buffer;
}

/**
 * Makes a batch of a body that is in memory: the body as one durable object, then the rows (see `recordBatch`).
 * Throws ApiError `idempotency_conflict`, `upload_used`, `too_many_pending`, the store's errors.
 */
export async function submitBatch(deps: SubmitDeps, request: SubmitRequest): Promise<Recorded> {
  const { surface, attribution, items, upload } = request;
  const { owner } = attribution;
  const id = uuidv7(deps.clock.now());
  const input: PayloadRef = { kind: 'input', id: uuidv7(deps.clock.now()) };
  const idempotency = await idempotencyOf(request);

  // Asked here to spare the write, and again under the lock of the row: only that one decides.
  const earlier = idempotency && (await findReplay(deps.db, idempotency, items.count));
  if (earlier) return earlier;
  await refuseOverPending(deps, deps.db, owner, items.count);

  const use = upload && { batchId: id, sha256: upload.sha256, totalItems: items.count };
  const crcs = await checksumItems(request.body, items);
  await deps.payloads.write(input, [request.body]);
  return recordBatch(deps, {
    row: {
      ...attribution,
      id,
      surface,
      shape: request.shape,
      inputId: input.id,
      customIdsId: null,
      anthropicVersion: request.anthropicVersion,
      anthropicBeta: request.anthropicBeta,
      maxAttempts: request.maxAttempts,
      onLimit: request.onLimit,
      completionWindowSeconds: request.completionWindowSeconds,
    },
    items: itemsAt(items, crcs),
    idempotency,
    objects: [input],
    ...(use && { within: (tx) => useUpload(tx, { id: upload.id, owner }, use) }),
  });
}

async function idempotencyOf(request: SubmitRequest): Promise<PreparedBatch['idempotency']> {
  if (request.idempotencyKey === null) return null;
  return {
    name: { owner: request.attribution.owner, surface: request.surface, key: request.idempotencyKey },
    sha256: request.bodySha256 ?? (await inTurns(sha256InSteps(request.body), request.body.length)),
  };
}
