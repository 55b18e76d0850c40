import { Readable } from 'node:stream';
import {
  DeleteObjectsCommand,
  GetObjectCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  PutObjectCommand,
  S3Client,
  type S3ClientConfig,
} from '@aws-sdk/client-s3';
import { Upload } from '@aws-sdk/lib-storage';
import { getSignedUrl } from '@aws-sdk/s3-request-presigner';

import { isUuid, uuidv7Time } from '../base/clock.ts';
import { ConfigError } from '../base/errors.ts';
import { PayloadNotFound, type PayloadRef, type PayloadStore, payloadKey, StorageFull } from './payload-store.ts';
import { configFaultOf, faultName, isNotFound, isShort } from './s3-errors.ts';

export interface S3StoreOptions {
  bucket: string;
  /** Precedes every key. A missing `/` at its end is added. May be empty. */
  prefix: string;
  /** An S3-compatible server, which is addressed by path. Null: AWS. */
  endpoint: string | null;
  /** Settings that replace the SDK's own environment and defaults: region, credentials. */
  client?: S3ClientConfig;
}

const MARKER = 'store-id';
/** An object above this size is sent in parts of this size, so it has at most 80 GiB (10,000 parts). */
const PART_BYTES = 8 * 1024 * 1024;
/** Parts under way at once: this bounds the memory of a stream to three of them, and the next one that is put together. */
const PARTS_AT_ONCE = 3;
/** The most keys that one DeleteObjects accepts. */
const DELETE_KEYS = 1000;
/** Tries of a read whose body broke off: the SDK repeats only calls that fail before the first byte. */
const READ_TRIES = 3;
/** Tries that the SDK makes for throttling and 5xx, with its back-off. */
const MAX_ATTEMPTS = 4;

/**
 * The payload store on S3 or a compatible server. Objects are written once, under keys that nobody else makes. So no
 * conditional writes are needed; not every server has them. A write returns when S3 has confirmed it: then it is
 * durable. Every write error becomes StorageFull, as in the file store: callers answer 503 or wait. For wrong
 * credentials, bucket or region the marker's calls, made at start, throw a ConfigError.
 */
export function createS3Store({ bucket, prefix, endpoint, client }: S3StoreOptions): PayloadStore {
  const options: S3ClientConfig = {
    maxAttempts: MAX_ATTEMPTS,
    retryMode: 'standard',
    // Every span has a CRC32 of ours, checked on read.
    responseChecksumValidation: 'WHEN_REQUIRED',
    requestHandler: {
      connectionTimeout: 5000,
      requestTimeout: 30_000,
      throwOnRequestTimeout: true,
      // Longer than a reader of results may pause (60 s): its back-pressure holds the body open.
      socketTimeout: 65_000,
      httpAgent: { maxSockets: 64 },
      httpsAgent: { maxSockets: 64 },
    },
    ...(endpoint === null ? {} : { endpoint, forcePathStyle: true }),
    ...client,
  };
  const s3 = new S3Client(options);
  let signer: S3Client | null = null;
  const root = prefix === '' || prefix.endsWith('/') ? prefix : `${prefix}/`;
  const keyOf = (ref: PayloadRef) => root + payloadKey(ref);

  const put = async (Key: string, Body: Uint8Array, ContentType?: string): Promise<void> => {
    await s3.send(new PutObjectCommand({ Bucket: bucket, Key, Body, ContentLength: Body.byteLength, ContentType }));
  };
  const putParts = async (ref: PayloadRef, body: Uint8Array | Readable): Promise<void> => {
    const upload = new Upload({
      client: s3,
      params: { Bucket: bucket, Key: keyOf(ref), Body: body, ContentType: typeOf(ref) },
      partSize: PART_BYTES,
      queueSize: PARTS_AT_ONCE,
    });
    await upload.done();
  };
  const open = async (ref: PayloadRef, offset: number, length: number): Promise<Readable> => {
    const Range = `bytes=${offset}-${offset + length - 1}`;
    try {
      const { Body } = await s3.send(new GetObjectCommand({ Bucket: bucket, Key: keyOf(ref), Range }));
      return Body as Readable;
    } catch (error) {
      throw readError(ref, error);
    }
  };

  return {
    streamBytes: (PARTS_AT_ONCE + 1) * PART_BYTES,
    async write(ref, pieces) {
      const total = pieces.reduce((sum, piece) => sum + piece.byteLength, 0);
      const whole = () => (pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces, total));
      try {
        if (total <= PART_BYTES) await put(keyOf(ref), whole(), typeOf(ref));
        else await putParts(ref, pieces.length === 1 ? pieces[0]! : Readable.from(pieces));
      } catch (error) {
        throw writeError(error);
      }
    },
    async writeStream(ref, source) {
      let length = 0;
      let failed: { error: unknown } | null = null;
      async function* counted(): AsyncGenerator<Uint8Array> {
        try {
          for await (const chunk of source) {
            length += chunk.byteLength;
            yield chunk;
          }
        } catch (error) {
          failed = { error };
          throw error;
        }
      }
      try {
        await putParts(ref, Readable.from(counted(), { objectMode: false }));
      } catch (error) {
        // A broken source is the caller's error, not the store's.
        throw failed === null ? writeError(error) : (failed as { error: unknown }).error;
      }
      return length;
    },
    async read(ref, offset, length, target) {
      if (length === 0) return Buffer.alloc(0);
      const whole = target ?? Buffer.allocUnsafeSlow(length);
      for (let tries = 1; ; tries++) {
        const body = await open(ref, offset, length);
        try {
          return await readInto(whole, body, ref);
        } catch (error) {
          if (tries === READ_TRIES || error instanceof ShortObject) throw error;
        }
      }
    },
    async *stream(ref, offset, length) {
      if (length === 0) return;
      let done = 0;
      for await (const chunk of await open(ref, offset, length)) {
        done += (chunk as Buffer).length;
        yield chunk as Buffer;
      }
      if (done !== length) throw new ShortObject(ref);
    },
    async size(ref) {
      try {
        const { ContentLength } = await s3.send(new HeadObjectCommand({ Bucket: bucket, Key: keyOf(ref) }));
        return ContentLength!;
      } catch (error) {
        throw readError(ref, error);
      }
    },
    link(ref, seconds, contentType) {
      const input = { Bucket: bucket, Key: keyOf(ref), ResponseContentType: contentType };
      return getSignedUrl(s3, new GetObjectCommand(input), { expiresIn: seconds });
    },
    uploadLink(ref, bytes, seconds) {
      // A separate client: the usual one would sign the checksum of a body that it does not have.
      signer ??= new S3Client({ ...options, requestChecksumCalculation: 'WHEN_REQUIRED' });
      const input = { Bucket: bucket, Key: keyOf(ref), ContentLength: bytes };
      return getSignedUrl(signer, new PutObjectCommand(input), { expiresIn: seconds });
    },
    async delete(refs) {
      for (let at = 0; at < refs.length; at += DELETE_KEYS) {
        const Objects = refs.slice(at, at + DELETE_KEYS).map((ref) => ({ Key: keyOf(ref) }));
        const { Errors } = await s3.send(
          new DeleteObjectsCommand({ Bucket: bucket, Delete: { Objects, Quiet: true } }),
        );
        const failed = Errors?.[0];
        if (failed) throw new Error(`payload objects not deleted: ${Errors.length}, the first one ${failed.Code}`);
      }
    },
    // Keys sort by hour and then by id, so by creation: the listing ends at the first one that is too young.
    async *list(kind, beforeMs) {
      let after: string | undefined;
      for (;;) {
        const page = await s3.send(
          new ListObjectsV2Command({ Bucket: bucket, Prefix: `${root}${kind}/`, StartAfter: after }),
        );
        for (const { Key } of page.Contents ?? []) {
          after = Key!;
          const id = Key!.slice(Key!.lastIndexOf('/') + 1);
          if (!isUuid(id) || Key !== keyOf({ kind, id })) continue;
          if (uuidv7Time(id) >= beforeMs) return;
          yield { kind, id };
        }
        if (!page.IsTruncated) return;
      }
    },
    // Nothing to do: S3 has no directories, and the bucket's lifecycle rule aborts unfinished uploads.
    removeStale: async () => {},
    async readMarker() {
      try {
        const { Body } = await s3.send(new GetObjectCommand({ Bucket: bucket, Key: root + MARKER }));
        return (await Body!.transformToString()).trim();
      } catch (error) {
        if (isNotFound(error)) return null;
        throw configError(bucket, error);
      }
    },
    async writeMarker(id) {
      await put(root + MARKER, Buffer.from(`${id}\n`)).catch((error) => {
        throw configError(bucket, error);
      });
    },
    async close() {
      s3.destroy();
      signer?.destroy();
    },
  };
}

/** Callers fetch results documents themselves, through a link. */
const typeOf = ({ kind }: PayloadRef) => (kind === 'result' ? 'application/json' : 'application/octet-stream');

class ShortObject extends Error {
  constructor(ref: PayloadRef, options?: { cause?: unknown }) {
    super(`payload object is shorter than expected: ${payloadKey(ref)}`, options);
  }
}

async function readInto(whole: Buffer, body: Readable, ref: PayloadRef): Promise<Buffer> {
  const { length } = whole;
  let done = 0;
  for await (const chunk of body) {
    if (done + (chunk as Buffer).length > length) throw new Error('more bytes than requested');
    done += (chunk as Buffer).copy(whole, done);
  }
  if (done !== length) throw new ShortObject(ref);
  return whole;
}

function readError(ref: PayloadRef, error: unknown): unknown {
  if (isNotFound(error)) return new PayloadNotFound(payloadKey(ref), { cause: error });
  if (isShort(error)) return new ShortObject(ref, { cause: error });
  return error;
}

function writeError(error: unknown): StorageFull {
  return new StorageFull(`payload storage cannot be written: ${faultName(error)}`, { cause: error });
}

function configError(bucket: string, error: unknown): unknown {
  const fault = configFaultOf(error);
  return fault === null
    ? error
    : new ConfigError(`RELAY_S3_BUCKET "${bucket}" cannot be used: ${fault}`, { cause: error });
}
