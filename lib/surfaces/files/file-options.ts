import { z } from 'zod';
import { ApiError, cutText } from '../../base/errors.ts';
import { PARAM_AND_RULE, parseBy, wholeText } from '../../base/parse.ts';

/** The options of a file that its caller sent. */
export interface FileOptions {
  expiresAfterSeconds: number;
  /** The upload to take the bytes of, in place of a part `file`; null without one. */
  uploadId: string | null;
  /** Of the part `filename`, which belongs to an upload; null without one. */
  filename: string | null;
}

/** The parts of a form that are not the file, as they were sent. */
export type FormFields = ReadonlyMap<string, string>;

/** A file, and the output of a batch, expires after one hour at the earliest. */
export const MIN_EXPIRY_SECONDS = 3600;
/** And after 30 days at the latest, which is also the expiry of a batch file that names none. */
export const MAX_EXPIRY_SECONDS = 2_592_000;
const ANCHOR = 'expires_after[anchor]';
const SECONDS = 'expires_after[seconds]';
/** The name of a file that is made of an upload, unless the form has one. */
const UPLOAD_FILENAME = 'upload.jsonl';

/** The name of a part that has none. */
const NAMELESS = 'upload';

/** The fields that mean something; others are passed over. */
export const FORM_FIELDS: ReadonlySet<string> = new Set([
  'purpose',
  'upload_id',
  'filename',
  'expires_after',
  ANCHOR,
  SECONDS,
]);

const PURPOSE = z.object({
  purpose: z.literal('batch', { error: ({ input }) => `must be batch, not '${cutText(String(input))}'` }),
});

/** Both are present or both are absent; that is checked before their contents. */
const EXPIRY = z.object({ [ANCHOR]: z.string(), [SECONDS]: z.string() }).pipe(
  z.object({
    [ANCHOR]: z.literal('created_at', 'must be created_at'),
    [SECONDS]: wholeText(MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS, 10),
  }),
);

const FIELDS = PURPOSE.extend({
  expires_after: z.undefined(`is sent as two parts, ${ANCHOR} and ${SECONDS}`).optional(),
  upload_id: z.string().nullable().default(null),
  filename: z.string().nullable().default(null),
});

/**
 * Reads the fields ("OpenAI files" in docs/spec/openai-surface.md). Throws `missing_required_parameter` and
 * `invalid_value` with the parameter.
 */
export function fileOptions(fields: FormFields): FileOptions {
  const given = Object.fromEntries(fields);
  const { upload_id: uploadId, filename } = parseBy(FIELDS, given, PARAM_AND_RULE);
  const expires = fields.has(ANCHOR) || fields.has(SECONDS);
  const expiry = expires ? parseBy(EXPIRY, given, PARAM_AND_RULE)[SECONDS] : MAX_EXPIRY_SECONDS;
  return { expiresAfterSeconds: expiry, uploadId, filename };
}

/** Throws `invalid_value` unless files of this purpose may be uploaded. */
export function checkPurpose(purpose: string): void {
  parseBy(PURPOSE, { purpose }, PARAM_AND_RULE);
}

/**
 * The name that is kept: without folders, at most 128 characters, control characters escaped. Throws `invalid_value`
 * for another extension than `.jsonl`, whose case does not matter. A name without a dot is good: SDKs send `upload` or
 * `anonymous_file` for bytes without a name. `param` is the part that the name came with.
 */
export function storedName(filename: string | undefined, param: 'file' | 'filename'): string {
  const name = (filename ?? '').replace(/^.*[/\\]/s, '') || NAMELESS;
  if (/\.jsonl$/i.test(name) || !name.includes('.')) return cutText(name);
  const message = `a file of purpose batch must have a name ending in .jsonl, not '${cutText(name)}'`;
  throw new ApiError('invalid_value', message, { param });
}

/** The same of a file made of an upload, whose name is optional. */
export function uploadName(filename: string | null): string {
  return filename === null ? UPLOAD_FILENAME : storedName(filename, 'filename');
}
