import type { BodyAccount, BodyBudget } from '../../base/body-budget.ts';
import { ApiError } from '../../base/errors.ts';
import { freeIfLarge } from '../../base/growing-buffer.ts';
import { inTurns, sha256InSteps } from '../../base/turns.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import type { Recorded } from './record.ts';
import { parseMemory, parseUploaded, recordMemory } from './submission.ts';
import { type SubmitDeps, type SubmitRequest, submitBatch } from './submit.ts';
import type { UploadKey } from './uploads.sql.ts';
import { deleteUsed, digestOfUpload, inUploadTurn, readUpload, repeatUse, type UploadTurnDeps } from './use-upload.ts';

export interface SubmitUploadDeps extends SubmitDeps, UploadTurnDeps {
  /** Counts the upload while it is in memory. */
  bodies: BodyBudget;
  payloads: SubmitDeps['payloads'] & Pick<PayloadStore, 'read' | 'size'>;
}

/** A submit whose requests were uploaded before: `body` is the one that names the upload. */
export interface SubmitUploadRequest
  extends Omit<SubmitRequest, 'upload' | 'shape' | 'items' | 'maxAttempts' | 'onLimit' | 'completionWindowSeconds'> {
  uploadId: string;
  maxItems: number;
  /** Uploads of other surfaces are larger. */
  maxBytes: number;
}

/**
 * Makes a batch of an upload. One batch uses it up, in its own transaction; a submit that is refused does not. Throws
 * what `readUpload` and `repeatUse` throw, `body_too_large`, `overloaded`, and what a submit throws.
 */
export function submitUpload(deps: SubmitUploadDeps, request: SubmitUploadRequest): Promise<Recorded> {
  const { owner } = request.attribution;
  const key = { id: request.uploadId, owner };
  return inUploadTurn(deps, key, async () => {
    const account = deps.bodies.open(owner);
    try {
      return await submitFrom(deps, key, request, account);
    } finally {
      account.close();
    }
  });
}

async function submitFrom(
  deps: SubmitUploadDeps,
  key: UploadKey,
  request: SubmitUploadRequest,
  account: BodyAccount,
): Promise<Recorded> {
  const { surface, idempotencyKey, maxBytes } = request;
  const { owner } = key;
  const idempotency = idempotencyKey === null ? null : { owner, surface, key: idempotencyKey };
  const digestOf = (uploadSha256: Buffer) => digestOfUpload(uploadSha256, request.body);
  const body = await readUpload<Recorded, Buffer>(deps, key, {
    checkSize(bytes) {
      if (bytes <= maxBytes) return;
      const message = `request body too large: ${bytes} bytes sent, the limit is ${maxBytes} bytes`;
      throw new ApiError('body_too_large', message, { param: 'upload_id' });
    },
    whenUsed: (use) => repeatUse(deps.db, use, idempotency, digestOf),
    read(ref, bytes) {
      account.reserve(parseMemory(bytes, request.maxItems));
      return deps.payloads.read(ref, 0, bytes);
    },
  });
  if (!Buffer.isBuffer(body)) return body;
  const sha256 = await inTurns(sha256InSteps(body), body.length);
  const submission = await parseUploaded(body, request.body, request.maxItems);
  account.reserve(recordMemory(body.length, submission));
  const made = await submitBatch(deps, {
    ...request,
    ...submission,
    body,
    bodySha256: await digestOf(sha256),
    upload: { id: key.id, sha256 },
  });
  if (!made.replayed) await deleteUsed(deps, key);
  freeIfLarge(body);
  return made;
}
