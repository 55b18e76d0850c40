import { type Clock, uuidv7 } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import { inTurns, sha256InSteps } from '../../base/turns.ts';
import type { Db } from '../../db/database.ts';
import type { Attribution } from '../../model/batch.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
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
import { takeUpload } from './uploads.sql.ts';

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
  /** What the Idempotency-Key is compared by; that of `body` unless given. */
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
    items,
    crcs,
    idempotency,
    objects: [input],
    ...(upload && { within: (tx) => useUpload(tx, upload, owner, { batchId: id, totalItems: items.count }) }),
  });
}

/** The row's lock makes a second submit of it wait for this one. */
async function useUpload(
  tx: Db,
  { id, sha256 }: NonNullable<SubmitRequest['upload']>,
  owner: string,
  by: { batchId: string; totalItems: number },
): Promise<void> {
  if (await takeUpload(tx, { id, owner }, { ...by, sha256 })) return;
  throw new ApiError('upload_used', undefined, { param: 'upload_id' });
}

async function idempotencyOf(request: SubmitRequest): Promise<PreparedBatch['idempotency']> {
  if (request.idempotencyKey === null) return null;
  return {
    name: { owner: request.attribution.owner, surface: request.surface, key: request.idempotencyKey },
    sha256: request.bodySha256 ?? (await inTurns(sha256InSteps(request.body), request.body.length)),
  };
}
