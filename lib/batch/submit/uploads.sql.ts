import type { Db } from '../../db/database.ts';

/** An upload is its owner's alone. */
export interface UploadKey {
  id: string;
  owner: string;
}

/** An upload, as its owner's submit finds it. */
export interface UploadRow {
  /** Exact length that was announced. */
  bytes: number;
  expired: boolean;
  /** The batch that used it, with the SHA-256 of its bytes and its number of items; null while it is unused. */
  used: { batchId: string; sha256: Buffer; totalItems: number } | null;
}

const INSERT_UPLOAD = `
  with made as (
    insert into uploads (id, owner, bytes) values ($1::uuid, $2::text, $3::bigint) returning expires_at
  )
  select made.expires_at, s.secret from made cross join upload_secret s`;

/** Announces an upload; returns the time at which it expires, and the secret that its URL may be signed with. */
export async function insertUpload(
  db: Db,
  upload: { id: string; owner: string; bytes: number },
): Promise<{ expiresAt: Date; secret: Buffer }> {
  const values = [upload.id, upload.owner, upload.bytes];
  const { rows } = await db.query<{ expires_at: Date; secret: Buffer }>({
    name: 'insert_upload',
    text: INSERT_UPLOAD,
    values,
  });
  return { expiresAt: rows[0]!.expires_at, secret: rows[0]!.secret };
}

const FIND_UPLOAD = `
  select bytes, expires_at <= clock_timestamp() as expired, batch_id, sha256, total_items
  from uploads where id = $1::uuid and owner = $2::text`;

/** The upload; null if this owner has no such upload. */
export async function findUpload(db: Db, key: UploadKey): Promise<UploadRow | null> {
  const { rows } = await db.query<{
    bytes: number;
    expired: boolean;
    batch_id: string | null;
    sha256: Buffer | null;
    total_items: number | null;
  }>({ name: 'find_upload', text: FIND_UPLOAD, values: [key.id, key.owner] });
  const row = rows[0];
  if (row === undefined) return null;
  const { bytes, expired, batch_id: batchId, sha256, total_items: totalItems } = row;
  return { bytes, expired, used: batchId && sha256 && totalItems ? { batchId, sha256, totalItems } : null };
}

const FIND_RECEIVABLE = `
  select s.secret, u.owner, u.bytes, u.expires_at > clock_timestamp() as open, u.batch_id is not null as used
  from upload_secret s left join uploads u on u.id = $1::uuid`;

/** Reads the facts that decide about a PUT: the signing secret, and the upload if it exists. */
export async function findReceivable(
  db: Db,
  id: string,
): Promise<{ secret: Buffer; owner: string | null; bytes: number | null; open: boolean; used: boolean }> {
  const { rows } = await db.query<{
    secret: Buffer;
    owner: string | null;
    bytes: number | null;
    open: boolean | null;
    used: boolean;
  }>({
    name: 'find_receivable_upload',
    text: FIND_RECEIVABLE,
    values: [id],
  });
  const row = rows[0]!;
  return { ...row, open: row.open === true };
}

const USE_UPLOAD = `
  update uploads set batch_id = $3::uuid, sha256 = $4::bytea, total_items = $5::int
  where id = $1::uuid and owner = $2::text and batch_id is null`;

/** Assigns the upload to a batch, in the transaction that makes it; false when another has it. */
export async function takeUpload(
  db: Db,
  key: UploadKey,
  by: { batchId: string; sha256: Buffer; totalItems: number },
): Promise<boolean> {
  const values = [key.id, key.owner, by.batchId, by.sha256, by.totalItems];
  return (await db.query({ name: 'take_upload', text: USE_UPLOAD, values })).rowCount === 1;
}

/** Of the given uploads, those whose bytes may still be used. */
export const OPEN_UPLOADS = `
  select id from uploads where id = any($1::uuid[]) and batch_id is null and expires_at > clock_timestamp()`;

/**
 * Forgets uploads of two days ago: longer than Idempotency-Keys live, which used ones are kept for. statement_timestamp,
 * because an index condition cannot hold the volatile clock_timestamp: 100,000 uploads of which none was due were all read.
 */
export async function purgeUploads(db: Db): Promise<void> {
  await db.query({
    name: 'purge_uploads',
    text: `delete from uploads where created_at < statement_timestamp() - interval '48 hours'`,
    values: [],
  });
}
