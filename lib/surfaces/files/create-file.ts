import { type BodyAccount, type BodyBudget, counted } from '../../base/body-budget.ts';
import { type Clock, uuidv7 } from '../../base/clock.ts';
import { ApiError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { UploadTurnDeps } from '../../batch/submit/use-upload.ts';
import type { Database } from '../../db/database.ts';
import type { PayloadStore } from '../../payloads/payload-store.ts';
import { fileTooLarge } from './file-object.ts';
import { checkPurpose, FORM_FIELDS, fileOptions, storedName, uploadName } from './file-options.ts';
import { readForm } from './form.ts';
import { fileOfUpload } from './from-upload.ts';
import { discard, recordFile } from './record-file.ts';
import { type FileRow, insertFile, type NewFile } from './stored-files.sql.ts';

/** The bytes that a form may have beyond its file. */
const FRAME_BYTES = 1024 * 1024;

export interface CreateFileDeps extends UploadTurnDeps {
  db: Database;
  payloads: Pick<PayloadStore, 'writeStream' | 'streamBytes' | 'delete' | 'stream' | 'size'>;
  /** Counts what is on its way into the store. */
  bodies: BodyBudget;
  clock: Clock;
  log: Log;
}

/** A request that makes a file, before its body is read. */
export interface FileForm {
  owner: string;
  contentType: string | undefined;
  /** As announced; null without a `Content-Length`. */
  contentLength: number | null;
  body: AsyncIterable<Uint8Array>;
  maxFileBytes: number;
}

/**
 * Makes a file of a form, streamed into the store, or of the upload that the form names. Fields may stand before the file
 * or behind it; what can be refused is refused as soon as it was read, and leaves nothing behind. Throws `body_too_large`
 * (413), `missing_required_parameter`, `invalid_value`, `unsupported_media_type`, and for an upload `not_found`,
 * `upload_used`, `upload_incomplete`, `overloaded`.
 */
export async function createFile(deps: CreateFileDeps, form: FileForm): Promise<FileRow> {
  const account = deps.bodies.open(form.owner);
  try {
    return await fileOf(deps, form, account);
  } finally {
    account.close();
  }
}

async function fileOf(deps: CreateFileDeps, form: FileForm, account: BodyAccount): Promise<FileRow> {
  const object = { kind: 'input', id: uuidv7(deps.clock.now()) } as const;
  const stored = (bytes: AsyncIterable<Uint8Array>) => counted(bytes, account.part(), deps.payloads.streamBytes);
  const { file, ...options } = await receive(deps, form, object, stored);
  const made = {
    owner: form.owner,
    purpose: 'batch',
    object,
    expiresAfterSeconds: options.expiresAfterSeconds,
  } as const;
  if (file !== null) return recordFile(deps, object, () => insertFile(deps.db, { ...made, ...file }));
  if (options.uploadId === null)
    throw new ApiError('missing_required_parameter', 'file is required', { param: 'file' });
  const filename = uploadName(options.filename);
  const { maxFileBytes } = form;
  return fileOfUpload(deps, { ...made, filename }, { uploadId: options.uploadId, maxFileBytes, stored });
}

interface Received {
  /** The file that was sent, which is durable; null without one. */
  file: Pick<NewFile, 'filename' | 'bytes'> | null;
  expiresAfterSeconds: number;
  uploadId: string | null;
  filename: string | null;
}

/** Reads the form and stores its file. `stored` counts the bytes on their way. */
async function receive(
  deps: CreateFileDeps,
  form: FileForm,
  object: NewFile['object'],
  stored: (bytes: AsyncIterable<Uint8Array>) => AsyncIterable<Uint8Array>,
): Promise<Received> {
  const { contentType, contentLength, body, maxFileBytes } = form;
  const maxBytes = maxFileBytes + FRAME_BYTES;
  const tooLarge = () => fileTooLarge(contentLength, maxFileBytes);
  if ((contentLength ?? 0) > maxBytes) throw tooLarge();

  const fields = new Map<string, string>();
  const sent: { file: Received['file'] } = { file: null };
  try {
    await readForm(
      { contentType, body, maxBytes, tooLarge },
      {
        field(name, value) {
          if (!FORM_FIELDS.has(name)) return;
          if (fields.has(name)) throw new ApiError('invalid_value', `${name} is given twice`, { param: name });
          if (name === 'purpose') checkPurpose(value);
          fields.set(name, value);
        },
        async file(name, bytes) {
          const filename = storedName(name, 'file');
          const length = await deps.payloads.writeStream(object, stored(measured(bytes, maxFileBytes, tooLarge)));
          sent.file = { filename, bytes: length };
        },
      },
    );
    const options = fileOptions(fields);
    if (options.uploadId !== null && sent.file !== null) {
      throw new ApiError('invalid_value', 'upload_id and file exclude each other', { param: 'upload_id' });
    }
    return { ...options, file: sent.file };
  } catch (error) {
    if (sent.file !== null) await discard(deps, object);
    throw error;
  }
}

/** The same bytes; throws before the end of an empty file, and with the first byte that is too many. */
async function* measured(
  bytes: AsyncIterable<Uint8Array>,
  maxBytes: number,
  tooLarge: () => ApiError,
): AsyncGenerator<Uint8Array> {
  let length = 0;
  for await (const chunk of bytes) {
    length += chunk.byteLength;
    if (length > maxBytes) throw tooLarge();
    yield chunk;
  }
  if (length === 0) throw new ApiError('invalid_value', 'file is empty', { param: 'file' });
}
