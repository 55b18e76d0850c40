import { ApiError } from '../base/errors.ts';
import {
  type CatalogDocument,
  type CatalogError,
  type CatalogFault,
  type Claim,
  checkDocument,
  claimOf,
} from '../catalog/documents/document.ts';
import type { Kind } from '../catalog/documents/kinds.ts';
import { refuseEncodedBody } from './contracts.ts';
import { type ApiEvent, type ApiResult, accountOf, bodyOf } from './event.ts';
import { json } from './render.ts';

/** Values occupy at most 22 times the memory of their JSON. */
const PARSED_SHARE = 24;

/** The body as JSON; none at all is an empty object where `optional`. Throws 400 `invalid_json`, 415 when compressed. */
export function jsonBody(event: ApiEvent, optional = false): unknown {
  refuseEncodedBody(event.headers);
  const bytes = bodyOf(event);
  if (optional && bytes.length === 0) return {};
  accountOf(event).reserve(bytes.length * (1 + PARSED_SHARE));
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (cause) {
    throw new ApiError('invalid_json', undefined, { cause });
  }
}

type Json = Record<string, unknown>;

/** A good document, or its own faults and what of it is good. */
export type DocumentBody =
  | { ok: true; document: CatalogDocument }
  | { ok: false; faults: CatalogFault[]; claim: Claim | null };

/**
 * The catalogue document in a body. `kind` may be left out and must fit otherwise. With `id` (a PUT) what GET answered is
 * good as it is: `metadata.id` must be that id, and the read-only `status` is passed over. Throws ApiError for a body that
 * is not a JSON object.
 */
export function documentBody(event: ApiEvent, kind: Kind, id: string | null): DocumentBody {
  const body = jsonBody(event);
  if (!isObject(body)) throw new ApiError('invalid_value', 'request body must be a JSON object');
  const faults: CatalogFault[] = [];
  const raw: Json = { ...body };
  if (raw.kind === undefined) raw.kind = kind;
  else if (raw.kind !== kind) faults.push(faultOf(kind, 'kind', `must be ${kind} here`));
  raw.kind = kind;
  if (isObject(raw.metadata) && Object.hasOwn(raw.metadata, 'id') && id !== null) {
    const { id: own, ...metadata } = raw.metadata;
    raw.metadata = metadata;
    if (typeof own !== 'string' || own.toLowerCase() !== id.toLowerCase()) {
      faults.push(faultOf(kind, 'metadata.id', 'must be the id in the path'));
    }
  }
  if (id !== null) delete raw.status;
  const where = { file: null, document: null };
  const checked = checkDocument(raw, where);
  if (checked.ok && faults.length === 0) return checked;
  return { ok: false, faults: [...faults, ...(checked.ok ? [] : checked.faults)], claim: claimOf(raw, where) };
}

/** 400 with every fault: joined in the message, and one by one in `faults` beside the error. */
export function faultsResult({ faults }: CatalogError): ApiResult {
  const list = faults.map(({ kind, name, field, message }) => ({ kind, name, field, message }));
  const message = list.map((fault) => `${fault.field} ${fault.message}`.trim()).join('; ');
  const error = { type: 'invalid_request_error', message, code: 'invalid_value', param: list[0]?.field || null };
  return json(400, { error, faults: list.map(({ field, message }) => ({ field, message })) });
}

function faultOf(kind: Kind, field: string, message: string): CatalogFault {
  return { file: null, document: null, kind, name: null, field, message };
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
