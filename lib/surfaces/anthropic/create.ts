import { createHash } from 'node:crypto';
import { uuidv7 } from '../../base/clock.ts';
import { ApiError, reasonOf } from '../../base/errors.ts';
import { type PreparedBatch, type RecordDeps, type Recorded, recordBatch } from '../../batch/submit/record.ts';
import { takeUpload } from '../../batch/submit/uploads.sql.ts';
import type { Attribution } from '../../model/batch.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { CREATE_LIMITS, type CreateLimits, tooLarge } from './create-body.ts';
import { ANTHROPIC } from './message-batches.sql.ts';
import { openUpload } from './open-upload.ts';
import { type ReceiveDeps, type ReceivedRequests, receiveRequests } from './receive-requests.ts';

export interface CreateDeps extends RecordDeps, ReceiveDeps {
  payloads: Pick<PayloadStore, 'write' | 'writeStream' | 'stream' | 'size' | 'delete'>;
}

export interface CreateRequest {
  attribution: Attribution;
  /** The body as it comes. */
  source: AsyncIterable<Uint8Array>;
  /** Its length as far as it was announced. */
  announcedBytes: number | null;
  /** 1-255 printable ASCII characters; null without one. */
  idempotencyKey: string | null;
  anthropicVersion: string | null;
  anthropicBeta: string | null;
}

/** Items are run until they have an answer or the window closes (front-doors section 1). */
const MAX_ATTEMPTS = 32_767;
const WINDOW_SECONDS = 86_400;

type Requests = Extract<ReceivedRequests, { kind: 'requests' }>;

/**
 * Makes a batch of a body that may be 256 MB, with one request of it in memory at a time. A body that names an upload
 * (`POST /v1/uploads`) has its bytes checked and written again under a key that their sender cannot write; one batch uses
 * the upload up. A refused create leaves nothing behind. Throws what `createBodyReader`, `openUpload` and `recordBatch`
 * throw, and the store's errors.
 */
export async function createMessageBatch(
  deps: CreateDeps,
  request: CreateRequest,
  limits: CreateLimits = CREATE_LIMITS,
): Promise<Recorded> {
  if ((request.announcedBytes ?? 0) > limits.maxBytes) throw tooLarge(`${request.announcedBytes} bytes`, limits);
  const received = await receiveRequests(deps, request.source, limits);
  if (received.kind === 'requests') return record(deps, request, received, received.sha256, null);

  const { uploadId, sha256: outer } = received;
  const { attribution, idempotencyKey } = request;
  const idempotency = idempotencyKey === null ? null : nameOf(attribution.owner, idempotencyKey);
  const key = { id: uploadId, owner: attribution.owner };
  const digestOf = (uploaded: Buffer) => createHash('sha256').update(uploaded).update(outer).digest();
  const opened = await openUpload(deps, key, { idempotency, digestOf });
  if ('replayed' in opened) return opened;
  const uploaded = await receiveRequests(deps, opened.bytes(), limits);
  if (uploaded.kind === 'upload') {
    throw new ApiError('invalid_value', 'upload_id: cannot stand in an upload', { param: 'upload_id' });
  }
  const made = await record(deps, request, uploaded, digestOf(uploaded.sha256), key);
  if (!made.replayed) {
    await deps.payloads.delete([{ kind: 'upload', id: uploadId }]).catch((error) => {
      deps.log.warn({ err: reasonOf(error), object: uploadId }, 'could not delete a used upload, the sweep does it');
    });
  }
  return made;
}

async function record(
  deps: CreateDeps,
  request: CreateRequest,
  { input, items, crcs, customIds, sha256 }: Requests,
  digest: Buffer,
  upload: { id: string; owner: string } | null,
): Promise<Recorded> {
  const { attribution, idempotencyKey, anthropicVersion, anthropicBeta } = request;
  const id = uuidv7(deps.clock.now());
  const ids: PayloadRef = { kind: 'custom_ids', id: uuidv7(deps.clock.now()) };
  await writeCustomIds(deps, ids, customIds).catch(async (error) => {
    await deps.payloads.delete([input]).catch(() => {}); // else the orphan sweep does it
    throw error;
  });
  const use: PreparedBatch['within'] = async (tx) => {
    const by = { batchId: id, sha256, totalItems: items.count };
    if (!(await takeUpload(tx, upload!, by))) throw new ApiError('upload_used', undefined, { param: 'upload_id' });
  };
  return recordBatch(deps, {
    row: {
      ...attribution,
      id,
      surface: ANTHROPIC,
      shape: 'anthropic',
      inputId: input.id,
      customIdsId: ids.id,
      anthropicVersion,
      anthropicBeta,
      maxAttempts: MAX_ATTEMPTS,
      onLimit: 'wait',
      completionWindowSeconds: WINDOW_SECONDS,
    },
    items,
    crcs,
    idempotency: idempotencyKey === null ? null : { name: nameOf(attribution.owner, idempotencyKey), sha256: digest },
    objects: [input, ids],
    ...(upload && { within: use }),
  });
}

/** One JSON string a line. They hold no character that JSON would escape, so they need not be kept as they were sent. */
async function writeCustomIds(deps: CreateDeps, ref: PayloadRef, customIds: ReadonlySet<string>): Promise<void> {
  await deps.payloads.write(ref, [Buffer.from(`"${[...customIds].join('"\n"')}"\n`, 'latin1')]);
}

function nameOf(owner: string, key: string) {
  return { owner, surface: ANTHROPIC, key };
}
