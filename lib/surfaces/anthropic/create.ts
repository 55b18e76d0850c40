import type { BodyBudget } from '../../base/body-budget.ts';
import { uuidv7 } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import { itemsAt } from '../../batch/submit/record.sql.ts';
import { type RecordDeps, type Recorded, recordBatch } from '../../batch/submit/record.ts';
import type { UploadKey } from '../../batch/submit/uploads.sql.ts';
import {
  deleteUsed,
  digestOfUpload,
  inUploadTurn,
  readUpload,
  repeatUse,
  type UploadTurnDeps,
  useUpload,
} from '../../batch/submit/use-upload.ts';
import type { Attribution } from '../../model/batch.ts';
import type { PayloadRef, PayloadStore } from '../../payloads/payload-store.ts';
import { CREATE_LIMITS, type CreateLimits, tooLarge } from './create-body.ts';
import { ANTHROPIC } from './message-batches.sql.ts';
import { type ReceiveDeps, type ReceivedRequests, receiveRequests } from './receive-requests.ts';

export interface CreateDeps extends RecordDeps, UploadTurnDeps {
  clock: ReceiveDeps['clock'];
  /** Counts what is in memory of a request. */
  bodies: BodyBudget;
  payloads: Pick<PayloadStore, 'write' | 'writeStream' | 'streamBytes' | 'stream' | 'size' | 'delete'>;
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

/**
 * Items are run until they have an answer or the window closes ("How items of the SDK surfaces run" in
 * docs/spec/openai-surface.md).
 */
const MAX_ATTEMPTS = 32_767;
const WINDOW_SECONDS = 86_400;

type Requests = Extract<ReceivedRequests, { kind: 'requests' }>;

/**
 * Makes a batch of a body that may be 256 MB, with one request of it in memory at a time. A body that names an upload
 * (`POST /v1/uploads`) has its bytes checked and written again under a key that their sender cannot write; one batch uses
 * the upload up. A refused create leaves nothing behind. Throws what `createBodyReader`, `readUpload`, `repeatUse` and
 * `recordBatch` throw, and the store's errors.
 */
export async function createMessageBatch(
  deps: CreateDeps,
  request: CreateRequest,
  limits: CreateLimits = CREATE_LIMITS,
): Promise<Recorded> {
  if ((request.announcedBytes ?? 0) > limits.maxBytes) throw tooLarge(`${request.announcedBytes} bytes`, limits);
  const account = deps.bodies.open(request.attribution.owner);
  const receive = (source: AsyncIterable<Uint8Array>) => receiveRequests({ ...deps, account }, source, limits);
  try {
    const received = await receive(request.source);
    if (received.kind === 'requests') return await record(deps, request, received, received.sha256, null);
    const key = { id: received.uploadId, owner: request.attribution.owner };
    return await inUploadTurn(deps, key, () => createFrom(deps, key, request, received.sha256, receive));
  } finally {
    account.close();
  }
}

/** Makes a batch of an upload. `outer` is the SHA-256 of the body that names it. */
async function createFrom(
  deps: CreateDeps,
  key: UploadKey,
  request: CreateRequest,
  outer: Buffer,
  receive: (source: AsyncIterable<Uint8Array>) => Promise<ReceivedRequests>,
): Promise<Recorded> {
  const { attribution, idempotencyKey } = request;
  const idempotency = idempotencyKey === null ? null : nameOf(attribution.owner, idempotencyKey);
  const digestOf = (uploadSha256: Buffer) => digestOfUpload(uploadSha256, outer);
  const uploaded = await readUpload<Recorded, ReceivedRequests>(deps, key, {
    whenUsed: (use) => repeatUse(deps.db, use, idempotency, digestOf),
    read: (ref, bytes) => receive(deps.payloads.stream(ref, 0, bytes)),
  });
  if ('replayed' in uploaded) return uploaded;
  if (uploaded.kind === 'upload') {
    throw new ApiError('invalid_value', 'upload_id: cannot stand in an upload', { param: 'upload_id' });
  }
  const made = await record(deps, request, uploaded, await digestOf(uploaded.sha256), key);
  if (!made.replayed) await deleteUsed(deps, key);
  return made;
}

async function record(
  deps: CreateDeps,
  request: CreateRequest,
  { input, items, crcs, customIds, sha256 }: Requests,
  digest: Buffer,
  upload: UploadKey | null,
): Promise<Recorded> {
  const { attribution, idempotencyKey, anthropicVersion, anthropicBeta } = request;
  const id = uuidv7(deps.clock.now());
  const ids: PayloadRef = { kind: 'custom_ids', id: uuidv7(deps.clock.now()) };
  await writeCustomIds(deps, ids, customIds).catch(async (error) => {
    await deps.payloads.delete([input]).catch(() => {}); // else the orphan sweep does it
    throw error;
  });
  const use = { batchId: id, sha256, totalItems: items.count };
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
    items: itemsAt(items, crcs),
    idempotency: idempotencyKey === null ? null : { name: nameOf(attribution.owner, idempotencyKey), sha256: digest },
    objects: [input, ids],
    ...(upload && { within: (tx) => useUpload(tx, upload, use) }),
  });
}

/** One JSON string a line. They hold no character that JSON would escape, so they need not be kept as they were sent. */
async function writeCustomIds(deps: CreateDeps, ref: PayloadRef, customIds: ReadonlySet<string>): Promise<void> {
  await deps.payloads.write(ref, [Buffer.from(`"${[...customIds].join('"\n"')}"\n`, 'latin1')]);
}

function nameOf(owner: string, key: string) {
  return { owner, surface: ANTHROPIC, key };
}
