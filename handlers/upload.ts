import { ApiError } from '../lib/base/errors.ts';
import { type CreateUploadDeps, createUpload } from '../lib/batch/submit/create-upload.ts';
import { refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, bodyOf, originOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** The body is one number: what is larger is something else, and not worth parsing. */
const MAX_BODY_BYTES = 16 * 1024;

/** The largest body of any surface, that of a message batch (front-doors section 4); each checks its own limit at its use. */
const MAX_UPLOAD_BYTES = 256 * 1024 * 1024;

export interface UploadApp extends GateDeps, CreateUploadDeps {
  /** 256 MiB unless a test says otherwise. */
  maxUploadBytes?: number;
  /** How callers reach the inference port; null takes the host that they asked. */
  publicUrl: string | null;
}

/** `POST /v1/uploads` */
export function upload(app: UploadApp): ApiHandler {
  const handle: Authenticated = async (event, { owner }) => {
    refuseEncodedBody(event.headers);
    const bytes = bytesOf(bodyOf(event));
    const limit = app.maxUploadBytes ?? MAX_UPLOAD_BYTES;
    if (bytes > limit) throw bodyTooLarge(`${bytes} bytes`, limit);
    const origin = () => originOf(event, app.publicUrl);
    const { id, url, expiresAt } = await createUpload(app, { owner, bytes, origin });
    return json(201, { upload_url: url, upload_id: id, expires_at: expiresAt.toISOString() });
  };
  return authenticated(app, handle);
}

function bytesOf(body: Buffer): number {
  if (body.length > MAX_BODY_BYTES) throw bodyTooLarge(`${body.length} bytes`, MAX_BODY_BYTES);
  let value: unknown;
  try {
    value = JSON.parse(body.toString());
  } catch (cause) {
    throw new ApiError('invalid_json', undefined, { cause });
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new ApiError('invalid_value', 'request body must be a JSON object');
  }
  const { bytes } = value as { bytes?: unknown };
  if (bytes === undefined) throw new ApiError('missing_required_parameter', 'bytes is required', { param: 'bytes' });
  if (typeof bytes === 'number' && Number.isSafeInteger(bytes) && bytes > 0) return bytes;
  throw new ApiError('invalid_value', 'bytes must be a whole number from 1', { param: 'bytes' });
}
