import { ApiError } from '../lib/base/errors.ts';
import { PARAM_AND_RULE, parseBy, requireObject } from '../lib/base/parse.ts';
import { type CreateUploadDeps, createUpload, UPLOAD_BODY } from '../lib/batch/submit/create-upload.ts';
import { type ReceiveUploadDeps, receiveUpload } from '../lib/batch/submit/receive-upload.ts';
import { refuseEncodedBody } from '../lib/http/contracts.ts';
import { bodyOf, originOf, pathParameter, queryOf, streamOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json } from '../lib/http/render.ts';
import { type Endpoint, endpoint, openEndpoint } from './endpoint.ts';
import type { GateDeps } from './middleware.ts';

// Bodies that are announced and sent before the submit that names them, for all surfaces.

/** The body is one number: what is larger is something else, and not worth parsing. */
const MAX_BODY_BYTES = 16 * 1024;

/**
 * The largest body of any surface, that of a message batch ("Create of a message batch" in
 * docs/spec/anthropic-surface.md); each checks its own limit at its use.
 */
const MAX_UPLOAD_BYTES = 256 * 1024 * 1024;

interface CreateUploadApp extends GateDeps, CreateUploadDeps {
  /** 256 MiB unless a test says otherwise. */
  maxUploadBytes?: number;
  /** How callers reach the inference port; null takes the host that they asked. */
  publicUrl: string | null;
}

const createUploadEndpoint = endpoint(
  { method: 'POST', pattern: '/v1/uploads', body: 'read', maxBytes: MAX_BODY_BYTES, lambda: 'upload' },
  async (app: CreateUploadApp, { owner }, event) => {
    refuseEncodedBody(event.headers);
    const bytes = bytesOf(bodyOf(event));
    const limit = app.maxUploadBytes ?? MAX_UPLOAD_BYTES;
    if (bytes > limit) throw bodyTooLarge(`${bytes} bytes`, limit);
    const origin = () => originOf(event, app.publicUrl);
    const { id, url, expiresAt } = await createUpload(app, { owner, bytes, origin });
    return json(201, { upload_url: url, upload_id: id, expires_at: expiresAt.toISOString() });
  },
);

function bytesOf(body: Buffer): number {
  let value: unknown;
  try {
    value = JSON.parse(body.toString());
  } catch (cause) {
    throw new ApiError('invalid_json', undefined, { cause });
  }
  const given = requireObject(value);
  if (['filename', 'mime_type', 'purpose'].some((name) => Object.hasOwn(given, name))) {
    throw new ApiError('invalid_value', "this is not OpenAI's Uploads API; send the file to POST /v1/files");
  }
  return parseBy(UPLOAD_BODY, given, PARAM_AND_RULE).bytes;
}

type ReceiveUploadApp = Pick<GateDeps, 'log' | 'notReady'> & ReceiveUploadDeps;

/** Its URL is its credential. Only where the store has no signed URLs of its own. */
export const receiveUploadEndpoint = openEndpoint(
  { method: 'PUT', pattern: '/v1/uploads/{id}', body: 'stream', lambda: null },
  async (app: ReceiveUploadApp, event) => {
    const unready = app.notReady();
    if (unready) throw new ApiError(unready.code, unready.reason);
    refuseEncodedBody(event.headers);
    const query = queryOf(event);
    await receiveUpload(app, {
      id: pathParameter(event, 'id'),
      bytes: query.get('bytes') ?? '',
      signature: query.get('signature') ?? '',
      source: streamOf(event),
    });
    return { statusCode: 200, headers: {} };
  },
);

/** All that uploads need of the application. */
export type UploadsApp = CreateUploadApp & ReceiveUploadApp;

export const UPLOAD_ENDPOINTS: readonly Endpoint<UploadsApp>[] = [createUploadEndpoint, receiveUploadEndpoint];
