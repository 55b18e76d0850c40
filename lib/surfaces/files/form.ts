import { once } from 'node:events';
import { Busboy, type BusboyFileStream, type BusboyInstance } from '@fastify/busboy';
import { ApiError, cutText, reasonOf } from '../../base/errors.ts';

/** Takes the parts of a form in the order they come. An error of either method ends the reading. */
export interface FormSink {
  /** A part that is not named `file`. Names are those of the sender. */
  field(name: string, value: string): void;
  /**
   * The one part named `file`, whatever its type. Reading continues as fast as `bytes` is taken; fields behind it come
   * meanwhile or after. `bytes` throws when the form breaks off.
   */
  file(filename: string | undefined, bytes: AsyncIterable<Uint8Array>): Promise<void>;
}

/** A form as it arrives. */
export interface FormSource {
  contentType: string | undefined;
  body: AsyncIterable<Uint8Array>;
  /** Most bytes of the whole body; `tooLarge` makes the error of one more. */
  maxBytes: number;
  tooLarge(): ApiError;
}

const LIMITS = { fieldSize: 16 * 1024, headerSize: 16 * 1024, headerPairs: 100, parts: 100 };

/**
 * Reads a multipart form with bounded memory; resolves when its end was read and the file was taken. After an error the
 * rest of the body is left unread and the file's taker has ended. Throws what the sink throws, `unsupported_media_type`
 * (415) for another content type, `invalid_value` for a form that is malformed, cut short or has two files.
 */
export async function readForm(source: FormSource, sink: FormSink): Promise<void> {
  const parser = openParser(source.contentType);
  const { promise: broken, reject } = Promise.withResolvers<never>();
  const reading = { parser, broken, failed: false };
  let file: BusboyFileStream | null = null;
  let taken: Promise<void> | null = null;

  const fail = (error: unknown) => {
    if (reading.failed) return;
    reading.failed = true;
    reject(error);
    file?.destroy(error as Error);
  };
  const guarded =
    <Args extends unknown[]>(work: (...args: Args) => void) =>
    (...args: Args) => {
      // A throw out of the parser's events would be nobody's to catch.
      try {
        if (!reading.failed) work(...args);
      } catch (error) {
        fail(error);
      }
    };
  const onField = (name: string | undefined, value: string, _nameCut: boolean, cut: boolean) => {
    if (cut) throw new ApiError('invalid_value', `${cutText(name ?? '')} is too long`, { param: cutText(name ?? '') });
    sink.field(name ?? '', value);
  };
  const onFile = (_name: string, stream: BusboyFileStream, filename: string | undefined) => {
    stream.on('error', () => {}); // its taker hears of it; nobody may be listening any more
    if (taken !== null) throw new ApiError('invalid_value', 'file is given twice', { param: 'file' });
    file = stream;
    taken = sink.file(filename, stream);
    taken.catch(fail);
  };
  parser.on('field', guarded(onField));
  parser.on('file', guarded(onFile));
  parser.on('partsLimit', () => fail(malformed(`it has more than ${LIMITS.parts} parts`)));
  parser.on('error', (error) => fail(malformed(reasonOf(error), error)));

  try {
    const finished = once(parser, 'finish');
    finished.catch(() => {}); // an error of the parser is reported by `broken`
    await Promise.race([Promise.all([feed(reading, source), finished]), broken]);
    await taken;
  } catch (error) {
    fail(error);
    await settled(taken);
    throw error;
  }
}

interface Reading {
  parser: BusboyInstance;
  /** Rejects with the first error. */
  broken: Promise<never>;
  failed: boolean;
}

/** Writes the body into the parser as it takes it; ends early, and lets go of the body, once the reading has failed. */
async function feed(reading: Reading, { body, maxBytes, tooLarge }: FormSource): Promise<void> {
  const { parser, broken } = reading;
  let length = 0;
  for await (const chunk of unlessCut(body)) {
    if (reading.failed) return;
    length += chunk.byteLength;
    if (length > maxBytes) throw tooLarge();
    if (!parser.write(chunk)) await Promise.race([once(parser, 'drain'), broken]);
    if (reading.failed) return;
  }
  parser.end();
}

/** The same bytes; a connection that ends before the body does becomes an error that has a name. */
async function* unlessCut(body: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  try {
    yield* body;
  } catch (error) {
    if (error instanceof ApiError) throw error;
    throw malformed('the connection ended before the body did', error);
  }
}

function openParser(contentType: string | undefined): BusboyInstance {
  if (contentType === undefined || !/^\s*multipart\/form-data\s*(;|$)/i.test(contentType)) {
    throw new ApiError('unsupported_media_type', 'Content-Type must be multipart/form-data', { param: 'Content-Type' });
  }
  try {
    return new Busboy({
      headers: { 'content-type': contentType.trim() },
      isPartAFile: (name) => name === 'file',
      preservePath: true,
      limits: LIMITS,
    });
  } catch (cause) {
    const message = 'Content-Type has no boundary that can be used';
    throw new ApiError('invalid_value', message, { param: 'Content-Type', cause });
  }
}

function malformed(reason: string, cause?: unknown): ApiError {
  return new ApiError('invalid_value', `request body is not valid multipart/form-data: ${reason}`, { cause });
}

async function settled(work: Promise<void> | null): Promise<void> {
  await work?.catch(() => {});
}
