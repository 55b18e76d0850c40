import { ApiError, cutText } from '../../base/errors.ts';

/** What a caller says of a file beside its bytes. */
export interface FileOptions {
  expiresAfterSeconds: number;
  /** The upload to take the bytes of, in place of a part `file`; null without one. */
  uploadId: string | null;
  /** Of the part `filename`, which belongs to an upload; null without one. */
  filename: string | null;
}

/** The parts of a form that are not the file, as they were sent. */
export type FormFields = ReadonlyMap<string, string>;

const MIN_EXPIRY_SECONDS = 3600;
/** Also the expiry of a batch file that names none: 30 days. */
const MAX_EXPIRY_SECONDS = 2_592_000;
const ANCHOR = 'expires_after[anchor]';
const SECONDS = 'expires_after[seconds]';
/** The name of a file that is made of an upload, unless the form has one. */
const UPLOAD_FILENAME = 'upload.jsonl';

/** The fields that mean something; others are passed over. */
export const FORM_FIELDS: ReadonlySet<string> = new Set([
  'purpose',
  'upload_id',
  'filename',
  'expires_after',
  ANCHOR,
  SECONDS,
]);

/** Reads the fields (front-doors section 2). Throws `missing_required_parameter` and `invalid_value` with the parameter. */
export function fileOptions(fields: FormFields): FileOptions {
  const purpose = fields.get('purpose');
  if (purpose === undefined) throw missing('purpose');
  checkPurpose(purpose);
  return {
    expiresAfterSeconds: expiryOf(fields),
    uploadId: fields.get('upload_id') ?? null,
    filename: fields.get('filename') ?? null,
  };
}

/** Throws `invalid_value` unless files of this purpose may be uploaded. */
export function checkPurpose(purpose: string): void {
  if (purpose === 'batch') return;
  throw new ApiError('invalid_value', `purpose must be batch, not '${cutText(purpose)}'`, { param: 'purpose' });
}

/**
 * The name that is kept: without folders, at most 128 characters, control characters escaped. Throws `invalid_value`
 * unless the whole name ends in `.jsonl`; its case does not matter. `param` is the part that the name came with.
 */
export function storedName(filename: string | undefined, param: 'file' | 'filename'): string {
  const name = (filename ?? '').replace(/^.*[/\\]/s, '');
  if (/\.jsonl$/i.test(name)) return cutText(name);
  const message = `a file of purpose batch must have a name ending in .jsonl, not '${cutText(name)}'`;
  throw new ApiError('invalid_value', message, { param });
}

/** The same of a file made of an upload, whose name is optional. */
export function uploadName(filename: string | null): string {
  return filename === null ? UPLOAD_FILENAME : storedName(filename, 'filename');
}

/** The 400 of a parameter that is not there. */
export function missing(param: string): ApiError {
  return new ApiError('missing_required_parameter', `${param} is required`, { param });
}

function expiryOf(fields: FormFields): number {
  if (fields.has('expires_after')) {
    const message = `expires_after is sent as two parts, ${ANCHOR} and ${SECONDS}`;
    throw new ApiError('invalid_value', message, { param: 'expires_after' });
  }
  const anchor = fields.get(ANCHOR);
  const seconds = fields.get(SECONDS);
  if (anchor === undefined && seconds === undefined) return MAX_EXPIRY_SECONDS;
  if (anchor === undefined) throw missing(ANCHOR);
  if (seconds === undefined) throw missing(SECONDS);
  if (anchor !== 'created_at') {
    throw new ApiError('invalid_value', `${ANCHOR} must be created_at`, { param: ANCHOR });
  }
  const value = /^\d{1,10}$/.test(seconds) ? Number(seconds) : Number.NaN;
  if (value >= MIN_EXPIRY_SECONDS && value <= MAX_EXPIRY_SECONDS) return value;
  const rule = `must be a whole number from ${MIN_EXPIRY_SECONDS} to ${MAX_EXPIRY_SECONDS}`;
  throw new ApiError('invalid_value', `${SECONDS} ${rule}`, { param: SECONDS });
}
