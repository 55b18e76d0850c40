import { z } from 'zod';
import { type Clock, uuidv7 } from '../../base/clock.ts';
import type { Db } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { uploadPath } from './upload-url.ts';
import { insertUpload } from './uploads.sql.ts';

/** How long an upload lives: migrations/0008_uploads.sql. */
const UPLOAD_SECONDS = 3600;

const BYTES_RULE = 'must be a whole number from 1';

/** Body of `POST /v1/uploads`. Members that it does not name are ignored. */
export const UPLOAD_BODY = z.object({ bytes: z.int(BYTES_RULE).min(1, BYTES_RULE) });

export interface CreateUploadDeps {
  db: Db;
  payloads: Pick<PayloadStore, 'uploadLink'>;
  clock: Clock;
}

export interface CreatedUpload {
  id: string;
  /** Takes one PUT of exactly the announced length, without a credential. */
  url: string;
  expiresAt: Date;
}

/**
 * Announces an upload of exactly `bytes` and says where to put it: straight into the store where that can be, else to
 * the service's own endpoint below `origin`.
 */
export async function createUpload(
  deps: CreateUploadDeps,
  { owner, bytes, origin }: { owner: string; bytes: number; origin(): string },
): Promise<CreatedUpload> {
  const id = uuidv7(deps.clock.now());
  const { expiresAt, secret } = await insertUpload(deps.db, { id, owner, bytes });
  const direct = await deps.payloads.uploadLink?.({ kind: 'upload', id }, bytes, UPLOAD_SECONDS);
  return { id, url: direct ?? origin() + uploadPath(secret, { id, bytes }), expiresAt };
}
