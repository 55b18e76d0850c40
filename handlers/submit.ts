import { attributionOf, governingPolicy } from '../lib/auth/govern.ts';
import { parseSubmission } from '../lib/batch/submit/submission.ts';
import { submitBatch } from '../lib/batch/submit/submit.ts';
import { type SubmitUploadDeps, submitUpload } from '../lib/batch/submit/submit-upload.ts';
import { idempotencyKeyOf, recordedHeader, refuseEncodedBody } from '../lib/http/contracts.ts';
import { type ApiHandler, bodyOf } from '../lib/http/event.ts';
import { bodyTooLarge } from '../lib/http/read-body.ts';
import { json } from '../lib/http/render.ts';
import type { Catalog } from '../lib/model/catalog.ts';
import { type Authenticated, authenticated, type GateDeps } from './middleware.ts';

export interface SubmitApp extends GateDeps, SubmitUploadDeps {
  /** The catalogue in use. */
  catalog(): Catalog;
  maxItems: number;
  /** The Node adapter refuses larger bodies before it reads them; here it is API Gateway's that are checked. */
  maxRequestBytes: number;
}

/** `POST /v1/batches` */
export function submit(app: SubmitApp): ApiHandler {
  const handle: Authenticated = async (event, caller) => {
    const catalog = app.catalog();
    const attribution = attributionOf(caller, governingPolicy(caller, catalog), catalog);
    refuseEncodedBody(event.headers);
    const body = bodyOf(event);
    if (body.length > app.maxRequestBytes) throw bodyTooLarge(`${body.length} bytes`, app.maxRequestBytes);

    const request = {
      surface: 'relay',
      attribution,
      body,
      idempotencyKey: idempotencyKeyOf(event.headers),
      anthropicVersion: recordedHeader(event.headers, 'anthropic-version'),
      anthropicBeta: recordedHeader(event.headers, 'anthropic-beta'),
    };
    const parsed = await parseSubmission(body, app.maxItems);
    const made =
      'uploadId' in parsed
        ? await submitUpload(app, { ...request, ...parsed, maxItems: app.maxItems, maxBytes: app.maxRequestBytes })
        : await submitBatch(app, { ...request, ...parsed });
    const replayed: Record<string, string> = made.replayed ? { 'idempotency-replayed': 'true' } : {};
    const answer = json(202, { id: made.id, status: 'queued', total_items: made.totalItems }, replayed);
    return { ...answer, batchId: made.id };
  };
  return authenticated(app, handle);
}
