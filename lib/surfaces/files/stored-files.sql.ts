import type { Db } from '../../db/database.ts';
import type { PayloadKind, PayloadRef } from '../../payloads/payload-store.ts';

/** `batch`: uploaded by a caller; `batch_output`: written by the service, output and error files alike. */
export type FilePurpose = 'batch' | 'batch_output';

/** A file of the OpenAI surface; its bytes are the object. */
export interface FileRow {
  id: string;
  owner: string;
  purpose: FilePurpose;
  filename: string;
  bytes: number;
  object_kind: Extract<PayloadKind, 'input' | 'output'>;
  object_id: string;
  created_at: Date;
  /** Null: never. */
  expires_at: Date | null;
}

/** A file as it is made. */
export interface NewFile {
  owner: string;
  purpose: FilePurpose;
  filename: string;
  bytes: number;
  object: { kind: FileRow['object_kind']; id: string };
  /** Counted from its creation by the database's clock; null never expires. */
  expiresAfterSeconds: number | null;
}

const COLUMNS = 'id, owner, purpose, filename, bytes, object_kind, object_id, created_at, expires_at';

// A UUIDv7 of the database's own clock, with microseconds in its second part (RFC 9562 section 6.2, method 3). The order
// of ids is that of creation, on whichever replicas, so that lists and their cursors need no other key.
const INSERT_FILE = `
  with moment as (
    select c.now, floor(extract(epoch from c.now) * 1000000)::bigint as us
    from (select clock_timestamp() as now) c
  )
  insert into files (id, owner, purpose, filename, bytes, object_kind, object_id, created_at, expires_at)
  select (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
      || substr(replace(gen_random_uuid()::text, '-', ''), 17))::uuid,
    $1::text, $2::text, $3::text, $4::bigint, $5::text, $6::uuid, now, now + make_interval(secs => $7::float8)
  from moment
  returning ${COLUMNS}`;

/** Makes the row of a file whose object is durable already. */
export async function insertFile(db: Db, file: NewFile): Promise<FileRow> {
  const { object } = file;
  const values = [
    file.owner,
    file.purpose,
    file.filename,
    file.bytes,
    object.kind,
    object.id,
    file.expiresAfterSeconds,
  ];
  return (await db.query<FileRow>({ name: 'insert_file', text: INSERT_FILE, values })).rows[0]!;
}

/** Look-ups name owner and id together: another's file and one that never was are the same absence. */
export interface FileKey {
  owner: string;
  id: string;
}

const ALIVE = '(expires_at is null or expires_at > clock_timestamp())';

const FIND_FILE = `select ${COLUMNS} from files where id = $1::uuid and owner = $2::text and ${ALIVE}`;
const HOLD_FILE = `${FIND_FILE} for share`;

/** The file, or null when its owner has none of this id, or it has expired. */
export async function findFile(db: Db, { owner, id }: FileKey): Promise<FileRow | null> {
  const { rows } = await db.query<FileRow>({ name: 'find_file', text: FIND_FILE, values: [id, owner] });
  return rows[0] ?? null;
}

/**
 * The same, and keeps it from being deleted until the transaction ends: for who is about to refer to its object. A delete
 * that waited for the lock then sees the reference and leaves the object.
 */
export async function holdFile(tx: Db, { owner, id }: FileKey): Promise<FileRow | null> {
  const { rows } = await tx.query<FileRow>({ name: 'hold_file', text: HOLD_FILE, values: [id, owner] });
  return rows[0] ?? null;
}

/** A page of a list; `after` is a file's id, exclusive; null begins at the end of the order. */
export interface FilePage {
  owner: string;
  purpose: FilePurpose | null;
  after: string | null;
  limit: number;
}

/** Each order with the cursor that is before every id: a condition on null would keep it out of the index. */
const ORDERS = {
  desc: {
    name: 'list_files_desc',
    text: `
  select ${COLUMNS} from files
  where owner = $1::text and ($2::text is null or purpose = $2::text) and id < $3::uuid and ${ALIVE}
  order by id desc limit $4::int`,
    start: 'ffffffff-ffff-ffff-ffff-ffffffffffff',
  },
  asc: {
    name: 'list_files_asc',
    text: `
  select ${COLUMNS} from files
  where owner = $1::text and ($2::text is null or purpose = $2::text) and id > $3::uuid and ${ALIVE}
  order by id asc limit $4::int`,
    start: '00000000-0000-0000-0000-000000000000',
  },
};

/** At most `limit` files of an owner by time of creation: `desc` newest first. */
export async function listFiles(db: Db, order: 'asc' | 'desc', page: FilePage): Promise<FileRow[]> {
  const { name, text, start } = ORDERS[order];
  const values = [page.owner, page.purpose, page.after ?? start, page.limit];
  return (await db.query<FileRow>({ name, text, values })).rows;
}

const DELETE_FILE = `
  delete from files where id = $1::uuid and owner = $2::text and ${ALIVE} returning object_kind, object_id`;

interface ObjectColumns {
  object_kind: FileRow['object_kind'];
  object_id: string;
}

const refOf = (row: ObjectColumns): PayloadRef => ({ kind: row.object_kind, id: row.object_id });

/** Deletes the row and returns its object; null if it does not exist. */
export async function deleteFile(db: Db, { owner, id }: FileKey): Promise<PayloadRef | null> {
  const { rows } = await db.query<ObjectColumns>({ name: 'delete_file', text: DELETE_FILE, values: [id, owner] });
  return rows[0] ? refOf(rows[0]) : null;
}

// statement_timestamp, because an index condition cannot hold the volatile clock_timestamp.
const DELETE_EXPIRED = `
  delete from files where id in (
    select id from files where expires_at <= statement_timestamp() order by expires_at limit $1::int
    for update skip locked)
  returning object_kind, object_id`;

/** Deletes at most `limit` expired rows, oldest expiry first, and tells whose objects they were. */
export async function deleteExpiredFiles(db: Db, limit: number): Promise<PayloadRef[]> {
  const { rows } = await db.query<ObjectColumns>({
    name: 'delete_expired_files',
    text: DELETE_EXPIRED,
    values: [limit],
  });
  return rows.map(refOf);
}
