import { ApiError } from '../lib/base/errors.ts';
import { PARAM_AND_RULE, parseBy, requireObject } from '../lib/base/parse.ts';
import { type CreateUploadDeps, createUpload, UPLOAD_BODY } from '../lib/batch/submit/create-upload.ts';
import { refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, bodyOf, originOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json } from '../lib/http/render.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

/** The body is one number: what is larger is something else, and not worth parsing. */
const MAX_BODY_BYTES = 16 * 1024;

/**
 * The largest body of any surface, that of a message batch ("Create of a message batch" in
 * docs/spec/anthropic-surface.md); each checks its own limit at its use.
 */
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
  return parseBy(UPLOAD_BODY, requireObject(value), PARAM_AND_RULE).bytes;
}
